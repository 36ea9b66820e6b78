"""hopgemm.torch on a Hopper GPU within torch: autograd, streams, graphs, threads, devices, torch.compile."""

import functools
import os
import subprocess
import sys
import textwrap
import threading

import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from torch_cases import DTYPES, GPU_BATCHES, assert_same, capture, gpu_events, reference  # noqa: E402

import hopgemm  # noqa: E402
import hopgemm.torch  # noqa: E402
from hopgemm.torch import matmul  # noqa: E402

pytestmark = pytest.mark.gpu
settled = torch_cases.settled
integers = functools.partial(torch_cases.integers, device="cuda")
NAN = float("nan")


# ---- autograd ----


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape_a, shape_b", GPU_BATCHES + [((129, 72), (72, 136)), ((65, 33), (33, 7))])
def test_gradients(shape_a, shape_b, dtype):
    ours = [integers(*s, dtype=dtype, low=-1, high=1).requires_grad_() for s in (shape_a, shape_b)]
    theirs = [t.detach().double().requires_grad_() for t in ours]
    want = torch.matmul(*theirs)
    w = integers(*want.shape, dtype=dtype, low=-1, high=1)
    wanted = torch.autograd.grad(want, theirs, w.double())
    for call in (matmul, lambda a, b: matmul(a, b, alpha=1.0, sm_limit=16), torch.ops.hopgemm.gemm):
        if call is torch.ops.hopgemm.gemm and 1 in (len(shape_a), len(shape_b)):
            continue
        for got, exact in zip(torch.autograd.grad(call(*ours), ours, w), wanted, strict=True):
            assert_same(got, exact.float().to(dtype))
    summed = torch.autograd.grad(matmul(*ours).sum(), ours)  # a cotangent of stride 0
    for got, exact in zip(summed, torch.autograd.grad(torch.matmul(*theirs).sum(), theirs), strict=True):
        assert_same(got, exact.float().to(dtype))


def test_gradients_of_c_and_bias_and_fp32_cotangent():
    a, b = integers(65, 40).requires_grad_(), integers(40, 24).requires_grad_()
    c, bias = integers(65, 24, dtype=torch.float32).requires_grad_(), integers(24).requires_grad_()
    d = matmul(a, b, c=c, beta=2.0, bias=bias, out_dtype=torch.float32)
    g = torch.full((65, 24), 257.0, device="cuda")  # rounds to 256 in bfloat16, for the products alone
    grads = torch.autograd.grad(d, (a, b, c, bias), g)
    rounded = torch.full((65, 24), 256.0, device="cuda").bfloat16()
    assert_same(grads[0], reference(rounded, b.detach().mT))
    assert_same(grads[1], reference(a.detach().mT, rounded))
    assert_same(grads[2], 2 * g)
    assert_same(grads[3], g.sum(0).bfloat16())


def test_func_autocast_and_second_order():
    a, b = integers(5, 33, 16), integers(16, 24)
    assert_same(torch.vmap(matmul, (0, None))(a, b), reference(a, b))
    assert_same(
        torch.vmap(matmul, (None, 0))(b.mT, b.expand(3, 16, 24)), reference(b.mT, b.expand(3, 16, 24))
    )
    x = integers(8, 8, dtype=torch.float32).requires_grad_()
    with torch.autocast("cuda", dtype=torch.float16):
        d = matmul(x, x.mT)
    assert d.dtype == torch.float16
    (g,) = torch.autograd.grad(d.float().sum(), x, create_graph=False)
    assert g.dtype == torch.float32
    y = integers(8, 8, low=-1, high=1).requires_grad_()
    (first,) = torch.autograd.grad(matmul(y, y).sum(), y, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), y)
    assert_same(second, torch.full((8, 8), 16.0, device="cuda").bfloat16())


# ---- streams, graphs, threads, devices ----


def busy(milliseconds=20):
    torch.cuda._sleep(int(milliseconds * 1.5e6))


def test_side_streams():
    stream = torch.cuda.Stream()
    w = integers(72, 40)
    for k in (72, 71):  # the second is packed through a workspace
        x = integers(64, k)
        want = reference(x, w[:k])
        matmul(x, w[:k])  # loads the kernel, for which CUDA may wait for what runs
        torch.cuda.synchronize()
        for _ in range(5):
            source = torch.zeros_like(x)
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                busy()
                source.copy_(x)
                d = matmul(source, w[:k])
            assert not stream.query(), "the call waited for the GPU"
            stream.synchronize()
            assert_same(d, want)


def test_each_call_is_on_the_stream_of_its_caller():
    """Nothing of an earlier call stays: the default stream, two others, then a graph."""
    for k in (72, 71):
        x, w, ready = integers(64, k), integers(k, 40), integers(64, k)
        want, first = reference(ready, w), matmul(x, w)
        for stream in (torch.cuda.Stream(), torch.cuda.Stream()):
            source = torch.zeros_like(x)
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                busy()
                source.copy_(ready)
                d = matmul(source, w)
            assert_same(matmul(x, w), first)
            stream.synchronize()
            assert_same(d, want)
        graph, source = torch.cuda.CUDAGraph(), torch.zeros_like(x)
        with capture(graph):
            d = matmul(source, w)
        for values in (x, ready):
            source.copy_(values)
            d.fill_(NAN)
            graph.replay()
            assert_same(d, reference(values, w))


KERNELS = {  # one for each way that a product takes more than one launch: shape, what the config ends in
    "packed": ((65, 127, 33), ""),
    "filled": ((64, 64, 0), None),
    "tail": ((296, 520, 264), "+tail2x4"),
    "launches": ((1024, 1024, 264), "+ctas4+waves2"),
    "split": ((16, 1024, 520), "_swap+split2"),
}


@pytest.mark.parametrize("name", KERNELS)
def test_every_launch_is_on_the_stream_of_its_call(name, tmp_path):
    """Whatever comes before or after the product too; and nothing is cleared by a memset."""
    (m, n, k), end = KERNELS[name]
    a, b, stream = integers(m, k), integers(k, n), torch.cuda.Stream()
    config = None
    if end:
        kernel = "bf16_kn_16x128x64_c1x1_s11" if "_swap" in end else "bf16_kn_128x128x64_c1x1_s6_pingpong"
        config = kernel + end
    want, source, out = (
        reference(a, b),
        torch.zeros_like(a),
        torch.full((m, n), NAN, device="cuda").bfloat16(),
    )
    matmul(a, b, config=config)
    activities = [torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as profile:
        with torch.cuda.stream(stream):
            busy()
            source.copy_(a)
            matmul(source, b, out=out, config=config)
        stream.synchronize()
    assert_same(out, want)
    events, ours = gpu_events(profile, tmp_path)
    others = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy") and e not in ours]
    assert len(ours) > (name in ("packed", "tail", "launches"))
    assert len({e["args"]["stream"] for e in ours + others}) == 1
    assert not any(e.get("cat") == "gpu_memset" for e in events)


def test_workspace_is_not_reused_too_early():
    stream = torch.cuda.Stream()
    a, b = integers(257, 1025), integers(1025, 129)
    want = reference(a, b)
    torch.cuda.synchronize()
    results = []
    for _ in range(50):
        with torch.cuda.stream(stream):
            results.append(matmul(a, b))
        torch.full((1 << 20,), NAN, device="cuda")  # on the other stream, from the same allocator
    torch.cuda.synchronize()
    for d in results:
        assert_same(d, want)


ALLOCATORS = {
    "cached": {},
    "uncached": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    "cudaMallocAsync": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
}
TEMPORARIES = """
    import torch, hopgemm
    make = lambda *s: torch.randint(-3, 4, s, device="cuda").bfloat16()
    a, b = make(257, 1025), make(1025, 129)  # both are packed into a workspace
    want = (a.double() @ b.double()).bfloat16()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    for _ in range(200):
        with torch.cuda.stream(stream):
            x = a.clone()
            d = hopgemm.matmul(x, b)
            del x  # its memory goes to the next of this stream
            torch.full((257 * 1025,), float("nan"), device="cuda", dtype=torch.bfloat16)
        torch.full((1 << 18,), float("nan"), device="cuda")
        stream.synchronize()
        assert torch.equal(d, want)
"""


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_temporaries_of_a_side_stream(allocator):
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(TEMPORARIES)],
        env=os.environ | ALLOCATORS[allocator],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr


def test_graph_replay():
    for m, n, k in ((128, 256, 64), (65, 127, 33), (64, 64, 0)):
        x, w, bias = integers(m, k), integers(k, n), integers(n)
        graph = torch.cuda.CUDAGraph()
        with capture(graph):
            d = matmul(x, w, bias=bias)
            e = matmul(d.mT, d, out_dtype=torch.float32)
        for _ in range(3):
            x.copy_(integers(m, k))
            bias.copy_(integers(n, low=-1, high=1))
            graph.replay()
            assert_same(d, reference(x, w, bias=bias))
            assert_same(e, reference(d.mT, d, out_dtype=torch.float32))
            matmul(integers(m, n), integers(n, m))  # eager calls in between have their own operands


@pytest.mark.parametrize("m, n, k", [(128, 256, 64), (65, 127, 33)])
def test_graphs_and_eager_calls_of_one_shape_keep_their_operands(m, n, k):
    """No tensor map or workspace belongs to a shape: each of four pairs of operands has its own product."""
    pairs = [(integers(m, k), integers(k, n)) for _ in range(4)]
    graph = torch.cuda.CUDAGraph()
    with capture(graph):
        captured = [matmul(a, b) for a, b in pairs[:2]]
    for _ in range(10):
        for d in captured:
            d.fill_(NAN)
        eager = [matmul(*pairs[2])]
        graph.replay()
        eager.append(matmul(*pairs[3]))
        for d, (a, b) in zip(captured + eager, pairs, strict=True):
            assert_same(d, reference(a, b))
        for a, b in pairs:
            a.copy_(integers(m, k)), b.copy_(integers(k, n))


def test_graph_of_a_training_step():
    x, w = integers(64, 40, low=-1, high=1), integers(40, 24, low=-1, high=1).requires_grad_()
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        matmul(x, w).sum().backward()
    torch.cuda.current_stream().wait_stream(side)
    w.grad = None
    with capture(graph, "global"):  # backward runs on a thread of its own
        matmul(x, w).sum().backward()
    x.copy_(integers(64, 40, low=-1, high=1))
    graph.replay()
    assert_same(w.grad, x.double().sum(0)[:, None].expand(40, 24).bfloat16().contiguous())


def test_a_graph_outlives_its_neighbour():
    """Two graphs of one stream, each with a workspace: that of one must not go with the other."""
    x, w = integers(65, 127), integers(127, 33)
    want = reference(x, w)
    results, graphs = [], [torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()]
    for graph in graphs:
        with capture(graph):
            results.append(matmul(x, w))
    del graphs[1]
    kept = results[0]
    del results
    torch.cuda.empty_cache()
    garbage = [torch.full((1 << 18,), NAN, device="cuda") for _ in range(8)]
    for _ in range(20):
        kept.fill_(NAN)
        graphs[0].replay()
        assert_same(kept, want)
    del garbage


FIRST_IN_CAPTURE = """
    import torch, hopgemm
    make = lambda *s: torch.randint(-3, 4, s, device="cuda").to(torch.bfloat16)
    m, n, k = {shape}
    a, b, bias, out = make(m, k), make(k, n), make(n), make(m, n)
    want = (a.double() @ b.double() + bias.double()).bfloat16()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        {call}
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(d, want), (d, want)
    print("exact")
"""


@pytest.mark.parametrize(
    "call", ["d = hopgemm.matmul(a, b, bias=bias)", "d = hopgemm.matmul(a, b, bias=bias, out=out)"]
)
@pytest.mark.parametrize("shape", [(128, 256, 64), (65, 127, 33), (64, 64, 0), (1, 4096, 512)])
def test_first_call_of_a_process_inside_a_capture(shape, call):
    code = textwrap.dedent(FIRST_IN_CAPTURE).format(shape=shape, call=call)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0 and run.stdout.strip() == "exact", run.stderr


def test_a_thread_that_has_not_used_cuda():
    """Autograd's, in the first backward pass: the driver wants a context where the runtime would bind one."""
    a, b = integers(256, 256), integers(256, 256)
    want, out, failures = matmul(a, b), torch.zeros_like(a), []

    def work():
        try:
            matmul(a, b, out=out)
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            failures.append(error)

    torch.cuda.synchronize()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert not failures, failures
    assert_same(out, want)


def test_two_threads():
    failures = []

    def work(seed):
        try:
            generator = torch.Generator("cuda").manual_seed(seed)
            with torch.cuda.stream(torch.cuda.Stream()):
                for i in range(100):
                    k = 64 + i % 9
                    a = torch.randint(-3, 4, (130, k), device="cuda", generator=generator).bfloat16()
                    b = torch.randint(-3, 4, (k, 72), device="cuda", generator=generator).bfloat16()
                    assert_same(matmul(a, b, sm_limit=seed), reference(a, b))
                torch.cuda.current_stream().synchronize()
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (7, 66)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures and not any(t.is_alive() for t in threads), failures


def test_sm_limits_and_batch_invariance_give_exact_results():
    a, b = integers(515, 264), integers(264, 392)
    want = reference(a, b)
    for limit in (1, 2, 3, 16, 66, 131, 1000):
        assert_same(matmul(a, b, sm_limit=limit), want)
    with hopgemm.batch_invariant():
        x, w = (
            torch.randn(300, 520, device="cuda").bfloat16(),
            torch.randn(520, 264, device="cuda").bfloat16(),
        )
        whole = matmul(x, w)
        for rows in (slice(0, 1), slice(7, 72), slice(150, 300)):
            assert_same(matmul(x[rows], w), whole[rows])
    assert_same(matmul(x, w), matmul(x, w))


def keep_busy(streams, a, b):
    """Products on each of these streams, after all that was begun before."""
    torch.cuda.synchronize()
    for stream in streams:
        with torch.cuda.stream(stream):
            for _ in range(20):
                torch.mm(a, b)


def test_the_same_bits_beside_busy_streams():
    a, b = torch.randn(1111, 2048, device="cuda").bfloat16(), torch.randn(2048, 776, device="cuda").bfloat16()
    first = matmul(a, b)
    streams = [torch.cuda.Stream() for _ in range(8)]
    for busy_streams in (0, 1, 2, 8):
        keep_busy(streams[:busy_streams], a, b)
        assert all(torch.equal(matmul(a, b), first) for _ in range(100)), busy_streams


def test_the_same_bits_in_another_process():
    a = (torch.arange(1111 * 2048, device="cuda") % 1009 / 97 - 5).view(1111, 2048).bfloat16()
    b = (torch.arange(2048 * 776, device="cuda") % 1013 / 89 - 5).view(2048, 776).bfloat16()
    plain, invariant = (matmul(a, b, batch_invariant=flag).view(torch.int16) for flag in (False, True))
    printed = run_alone("""
        import torch, hopgemm
        a = (torch.arange(1111 * 2048, device="cuda") % 1009 / 97 - 5).view(1111, 2048).bfloat16()
        b = (torch.arange(2048 * 776, device="cuda") % 1013 / 89 - 5).view(2048, 776).bfloat16()
        for flag in (False, True):
            d = hopgemm.matmul(a, b, batch_invariant=flag).view(torch.int16).long()
            print((d * torch.arange(1, d.numel() + 1, device="cuda").view_as(d)).sum().item())
    """)
    place = torch.arange(1, plain.numel() + 1, device="cuda").view_as(plain)
    assert printed == [str((d.long() * place).sum().item()) for d in (plain, invariant)]


def test_deterministic_algorithms_need_nothing():
    a, b = (integers(65, 127).requires_grad_(), integers(127, 40).requires_grad_())
    torch.use_deterministic_algorithms(True)
    try:
        d = matmul(a, b)
        assert_same(d.detach(), reference(a.detach(), b.detach()))
        got = torch.autograd.grad(d, (a, b), torch.ones_like(d))
        again = torch.autograd.grad(matmul(a, b), (a, b), torch.ones_like(d))
        assert all(torch.equal(x, y) for x, y in zip(got, again, strict=True))
        assert not matmul(a[:, :0], b[:0]).any()  # empty memory is full of NaN then
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("k, n", [(520, 392), (16384, 520)])
def test_batch_invariance_of_identical_rows_and_batches(k, n):
    """Wherever a row lies, in the last tiles too, for which a tail or a split would sum in another order."""
    row, w = torch.randn(1, k, device="cuda").half(), torch.randn(k, n, device="cuda").half()
    with hopgemm.batch_invariant():
        alone = matmul(row, w)
        for m in (2, 17, 128, 1765):
            assert torch.equal(matmul(row.repeat(m, 1), w), alone.expand(m, n)), m
        columns = matmul(row.repeat(1765, 1), w[:, :1].repeat(1, n))
        assert (columns == columns[:1, :1]).all()
        x = torch.randn(65, k, device="cuda").half()
        many = matmul(x.repeat(9, 1, 1), w.repeat(9, 1, 1))
        assert torch.equal(many, matmul(x, w).expand(9, 65, n))


def test_batch_invariance_beside_busy_streams():
    a, b = torch.randn(300, 8192, device="cuda").bfloat16(), torch.randn(8192, 776, device="cuda").bfloat16()
    with hopgemm.batch_invariant():
        first, streams = matmul(a, b), [torch.cuda.Stream() for _ in range(8)]
        for busy_streams in (0, 1, 2, 8):
            keep_busy(streams[:busy_streams], a, b)
            for rows in (slice(0, 300), slice(7, 72), slice(299, 300)):
                assert torch.equal(matmul(a[rows], b), first[rows]), (busy_streams, rows)


def test_identical_rows_and_batches_get_identical_bits():
    row, column = torch.randn(1, 520, device="cuda").half(), torch.randn(520, 1, device="cuda").half()
    d = matmul(row.repeat(1765, 1), column.repeat(1, 392))
    assert (d == d[:1, :1]).all()
    x, w = torch.randn(65, 72, device="cuda").half(), torch.randn(72, 40, device="cuda").half()
    many = matmul(x.repeat(9, 1, 1), w.repeat(9, 1, 1))
    assert (many == many[:1]).all()


def test_devices_must_agree():
    a, b = integers(8, 8), integers(8, 8)
    for x, y in ((a.cpu(), b), (a, b.cpu())):
        with pytest.raises(TypeError, match="cpu.*cuda:0|cuda:0.*cpu"):
            matmul(x, y)
    for name in ("c", "bias", "out"):
        t = (integers(8) if name == "bias" else integers(8, 8)).cpu()
        with pytest.raises(TypeError, match=f"{name} is .* on cpu"):
            matmul(a, b, **{name: t}, beta=float(name == "c"))
    assert_same(matmul(a, b), reference(a, b))  # and nothing is left behind


def test_another_device():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    a, b = integers(65, 40).to("cuda:1"), integers(40, 24).to("cuda:1")
    assert_same(matmul(a, b), reference(a, b))
    assert torch.cuda.current_device() == 0
    with pytest.raises(TypeError, match="cuda:0.*cuda:1"):
        matmul(a.to("cuda:0"), b)


def test_refusals_leave_the_device_usable():
    a, b = integers(64, 64), integers(64, 64)
    with pytest.raises(ValueError, match="nonsense"):
        matmul(a, b, config="nonsense")
    with pytest.raises(TypeError, match="float64"):
        matmul(a.double(), b.double())
    assert_same(matmul(a, b), reference(a, b))


def run_alone(code):
    """In a process of its own: what it leaves behind is no other test's."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_an_earlier_error_is_neither_reported_nor_cleared():
    """A call of torch's runtime has failed and nobody has asked: that is its caller's business."""
    printed = run_alone("""
        import ctypes, torch, hopgemm
        filled = lambda value, *size: torch.full(size, value, device="cuda").bfloat16()
        a, out, odd, small = filled(1.0, 64, 64), filled(0.0, 64, 64), filled(1.0, 33, 7), filled(0.0, 33, 33)
        calls = lambda: (hopgemm.matmul(a, a, out=out), hopgemm.matmul(odd, odd.T, out=small))
        calls()
        torch.cuda.synchronize()
        out.zero_(), small.zero_()
        maps = open("/proc/self/maps").read().split()
        runtime = ctypes.CDLL(next(x for x in maps if "libcudart" in x))
        runtime.cudaGetLastError()
        wrong = runtime.cudaSetDevice(9999)
        assert wrong and runtime.cudaPeekAtLastError() == wrong
        calls()
        assert runtime.cudaGetLastError() == wrong
        torch.cuda.synchronize()
        print((out == 64).all().item(), (small == 7).all().item())
    """)
    assert printed == ["True", "True"]


def test_a_launch_that_fails_raises_at_the_call_and_names_the_kernel():
    """Into a capture that another call has made invalid."""
    printed = run_alone("""
        import os, torch, hopgemm
        a, out = torch.ones(64, 64, device="cuda").bfloat16(), torch.zeros(64, 64, device="cuda").bfloat16()
        hopgemm.matmul(a, a, out=out)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(torch.cuda.Stream()):
            graph.capture_begin()
            try:
                torch.cuda.synchronize()  # not allowed now
            except RuntimeError:
                pass
            try:
                hopgemm.matmul(a, a, out=out)
            except RuntimeError as error:
                print(str(error), flush=True)
        os._exit(0)  # the graph cannot be ended
    """)
    assert printed[0] == "hopgemm:" and printed[1].startswith("bf16_kn_"), printed
    assert any("cudaErrorStreamCapture" in word for word in printed), printed


def test_negated_and_saved_views():
    a, b = integers(64, 40), integers(40, 24)
    assert_same(matmul(torch._neg_view(a), b), reference(-a, b))


# ---- torch.compile ----


def test_compiled_step():
    pytest.importorskip("triton")

    def step(x, w, bias):
        return matmul(matmul(x, w, bias=bias).relu(), w.mT).float().sum()

    compiled = torch.compile(step, fullgraph=True, dynamic=True)
    for m in (64, 33, 129):
        args = [integers(*s, low=-1, high=1).requires_grad_() for s in ((m, 40), (40, 24), (24,))]
        got, want = torch.autograd.grad(compiled(*args), args), torch.autograd.grad(step(*args), args)
        for x, y in zip(got, want, strict=True):
            assert_same(x, y)


def test_reduce_overhead():
    pytest.importorskip("triton")
    w = integers(40, 24)
    compiled = torch.compile(lambda x: matmul(x, w) * 1, mode="reduce-overhead", fullgraph=True)
    for _ in range(6):
        x = integers(65, 40)
        assert_same(compiled(x).clone(), reference(x, w))


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_compiled_training(mode):
    """CUDA graph trees reuse memory between runs: thirty steps must be those of eager code."""
    pytest.importorskip("triton")

    def train(step):
        torch.manual_seed(0)
        w = integers(40, 24, low=-1, high=1).requires_grad_()
        for _ in range(30):
            w.grad = None
            step(integers(65, 40, low=-1, high=1), w).backward()
            with torch.no_grad():
                w.sub_(w.grad.sign())
        return w.detach()

    step = lambda x, w: matmul(matmul(x, w), w.mT, out_dtype=torch.float32).sum() / 64
    assert_same(train(torch.compile(step, mode=mode, fullgraph=True)), train(step))
