"""DTensor, tensor-parallel modules, DistributedDataParallel and FSDP over two processes.

    python torch_parallel.py cpu|cuda FILE RANK    # gloo on the CPU, NCCL on two GPUs; FILE: where they meet

`test_torch_parallel.py` runs both ranks. Small integers throughout: every comparison is bit for bit.
"""

import contextlib
import os
import sys
from unittest import mock

import torch
import torch.distributed as dist
from torch._dynamo.testing import CompileCounterWithBackend
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import hopgemm.torch
from hopgemm import _torch_linear_eager
from hopgemm.torch import Linear, matmul

WORLD = 2


def integers(*shape, dtype=torch.bfloat16):
    return torch.randint(-2, 3, shape).to(dtype)  # on the CPU: the same numbers on every rank


def assert_same(got, want, name):
    assert got.shape == want.shape and torch.equal(got.double().cpu(), want.double()), (name, got, want)


def communication(comm):
    """{"all_reduce": 1, ...} of what a CommDebugMode saw."""
    counts = {}
    for op, n in comm.get_comm_counts().items():
        kind = next((k for k in ("reduce_scatter", "all_gather", "all_reduce") if k in str(op)), str(op))
        counts[kind] = counts.get(kind, 0) + n
    return counts


# ---- products ----

R, P = Replicate(), Partial()
A, B, BIAS, C = (4, 6), (6, 8), (8,), (4, 8)
DEEP, BATCH = (2, 4, 6), (2, 6, 8)
# name, a, b, result; then c and bias where there are some. Shapes with placements.
CASES = [
    ("replicated", (A, R), (B, R), R, {}),
    ("rows", (A, Shard(0)), (B, R), Shard(0), {}),
    ("rows, c, bias", (A, Shard(0)), (B, R), Shard(0), {"c": (C, Shard(0)), "bias": (BIAS, R)}),
    ("rows, one row of c", (A, Shard(0)), (B, R), Shard(0), {"c": ((1, 8), R)}),
    ("columns", (A, R), (B, Shard(1)), Shard(1), {}),
    ("columns, c, bias", (A, R), (B, Shard(1)), Shard(1), {"c": (C, Shard(1)), "bias": (BIAS, Shard(0))}),
    ("columns, one column of c", (A, R), (B, Shard(1)), Shard(1), {"c": ((4, 1), R)}),
    ("sum over K", (A, Shard(1)), (B, Shard(0)), P, {}),
    ("batch of a", (DEEP, Shard(0)), (B, R), Shard(0), {"bias": (BIAS, R)}),
    ("rows of a batch", (DEEP, Shard(1)), (B, R), Shard(1), {"bias": (BIAS, R)}),
    ("columns beside a batch", (DEEP, R), (B, Shard(1)), Shard(2), {"bias": (BIAS, Shard(0))}),
    ("batch of both", (DEEP, Shard(0)), (BATCH, Shard(0)), Shard(0), {"c": ((2, 4, 8), Shard(0))}),
    ("batch of b", (A, R), (BATCH, Shard(0)), Shard(0), {}),
    ("columns of a batch of b", (A, R), (BATCH, Shard(2)), Shard(2), {"bias": (BIAS, Shard(0))}),
]


def products(mesh):
    for name, a, b, result, added in CASES:
        operands = {"a": a, "b": b, **added}
        plain = {key: integers(*shape) for key, (shape, _) in operands.items()}
        ours = {
            key: distribute_tensor(t, mesh, [operands[key][1]]).requires_grad_() for key, t in plain.items()
        }
        theirs = {key: t.double().requires_grad_() for key, t in plain.items()}
        options = {key: ours[key] for key in added} | {"beta": float("c" in added)}
        with CommDebugMode() as comm:
            d = matmul(ours["a"], ours["b"], **options)
        assert d.placements == (result,) and not communication(comm), (
            name,
            d.placements,
            communication(comm),
        )
        want = theirs["a"] @ theirs["b"] + sum(theirs[key] for key in added)
        assert_same(d.full_tensor(), want, name)
        w = integers(*want.shape)
        cotangent = distribute_tensor(w, mesh, [R if result == P else result])
        with CommDebugMode() as comm:
            d.backward(cotangent)
        assert "all_gather" not in communication(comm), (name, communication(comm))
        want.backward(w.double())
        for key, t in ours.items():
            assert_same(t.grad.full_tensor(), theirs[key].grad, (name, key))


def partial_operands(mesh):
    a, b = integers(*A), integers(*B)
    local = (a if mesh.get_local_rank() == 0 else 0 * a).to(mesh.device_type)
    summand, whole = DTensor.from_local(local, mesh, [P]), distribute_tensor(b, mesh, [R])
    for name, d, want in (
        ("partial a", matmul(summand, whole), a.double() @ b.double()),
        ("partial b", matmul(whole.mT, summand.mT), b.double().mT @ a.double().mT),
    ):
        assert d.placements == (P,), (name, d.placements)
        assert_same(d.full_tensor(), want, name)


# ---- modules ----


@contextlib.contextmanager
def recorded():
    """The types of a in products, by matmul or linear's short cut: what a layer did not leave to F.linear."""
    calls = []
    raw_linear = _torch_linear_eager.raw_linear
    with (
        mock.patch.object(
            hopgemm.torch, "matmul", lambda a, b, **k: calls.append(type(a)) or matmul(a, b, **k)
        ),
        mock.patch.object(
            _torch_linear_eager, "raw_linear", lambda a, *rest: calls.append(type(a)) or raw_linear(a, *rest)
        ),
    ):
        yield calls


def set_integers(model):
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(integers(*p.shape))
    return model


def tensor_parallel(mesh):
    """A two-layer perceptron, columns then rows: one all-reduce forward, one backward, no gather."""
    for shape in (A, DEEP):
        torch.manual_seed(1)
        model = torch.nn.Sequential(Linear(6, 8), torch.nn.ReLU(), Linear(8, 6))
        model = set_integers(model.bfloat16())
        theirs = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 6)).double()
        theirs.load_state_dict(model.state_dict())
        x = integers(*shape)
        wide = x.double().requires_grad_()
        model = model.to(mesh.device_type)
        model = parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        ours = x.to(mesh.device_type).requires_grad_()
        with CommDebugMode() as comm, recorded() as calls:
            y = model(ours)
        assert calls == [DTensor, DTensor], calls
        assert communication(comm) == {"all_reduce": 1}, communication(comm)
        want = theirs(wide)
        assert_same(y, want, "forward")
        with CommDebugMode() as comm:
            y.sum().backward()
        assert communication(comm) == {"all_reduce": 1}, communication(comm)
        want.sum().backward()
        assert_same(ours.grad, wide.grad, "x")
        for (name, p), q in zip(model.named_parameters(), theirs.parameters(), strict=True):
            assert_same(p.grad.full_tensor(), q.grad, name)


def no_main_grad(mesh):
    """Refused: a buffer for a shard, or a whole, of what?"""
    for weight, main_grad in ((R, None), (R, R), (None, R)):
        plain = {"weight": integers(8, 6).to(mesh.device_type), "main_grad": torch.zeros(8, 6)}
        plain["main_grad"] = plain["main_grad"].to(mesh.device_type)
        lies = {"weight": weight, "main_grad": main_grad}
        t = {key: distribute_tensor(t, mesh, [lies[key]]) if lies[key] else t for key, t in plain.items()}
        p = torch.nn.Parameter(t["weight"])
        p.main_grad = t["main_grad"]
        x = integers(*A).to(mesh.device_type)
        try:
            hopgemm.torch.linear(x if weight is None else distribute_tensor(x, mesh, [R]), p)
        except TypeError as error:
            assert "neither may be a DTensor" in str(error), error
        else:
            raise AssertionError((weight, main_grad))


def no_out(mesh):
    """A DTensor has no memory of its own to write to; what is returned says how it lies."""
    a, b, out = (distribute_tensor(integers(*s).to(mesh.device_type), mesh, [R]) for s in (A, B, C))
    try:
        matmul(a, b, out=out)
    except ValueError as error:
        assert "out is a DTensor" in str(error), error
    else:
        raise AssertionError("not refused")


def data_parallel(mesh):
    data = integers(8, 4, dtype=torch.float32).to(mesh.device_type)
    rank = mesh.get_local_rank()
    grads = []
    for linear in (Linear, torch.nn.Linear):
        torch.manual_seed(2)
        model = set_integers(torch.nn.Sequential(linear(4, 8), linear(8, 2, bias=False)))
        model = DistributedDataParallel(model.to(mesh.device_type))
        with torch.autocast(mesh.device_type, dtype=torch.bfloat16, enabled=linear is Linear):
            model(data[4 * rank : 4 * rank + 4]).float().sum().backward()
        grads.append([p.grad for p in model.parameters()])
        # HAZARD: a DDP model that outlives the process group can hang at its end.
        del model
    assert len(grads[0]) == 3 and all(g.any() for g in grads[1])
    for got, want in zip(*grads, strict=True):
        assert_same(got, want.cpu(), "gradient")


def fully_sharded(mesh):
    """FSDP2: sizes that the ranks cannot share evenly, parameters float32, products bfloat16."""
    data = integers(8, 5, dtype=torch.float32).to(mesh.device_type)
    rank = mesh.get_local_rank()
    torch.manual_seed(3)
    model = set_integers(torch.nn.Sequential(Linear(5, 9), Linear(9, 3, bias=False)))
    theirs = torch.nn.Sequential(torch.nn.Linear(5, 9), torch.nn.Linear(9, 3, bias=False))
    theirs.load_state_dict(model.state_dict())
    theirs.to(mesh.device_type)(data).sum().backward()
    model.to(mesh.device_type)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for module in (*model, model):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    with recorded() as calls:
        model(data[4 * rank : 4 * rank + 4]).float().sum().backward()
    assert len(calls) == 2, calls
    for (name, p), q in zip(model.named_parameters(), theirs.parameters(), strict=True):
        assert_same(WORLD * p.grad.full_tensor(), q.grad.cpu(), name)  # FSDP takes the mean


class Checkpointed(torch.nn.Sequential):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


def perceptron(linear):
    """32 words, layers of 25: no number that two ranks share evenly."""
    torch.manual_seed(4)
    blocks = [Checkpointed(linear(n, 25, bias=n == 32), torch.nn.Tanh()) for n in (32, 25)]
    return torch.nn.Sequential(*blocks, linear(25, 32))


def losses(model, tokens, targets, autocast):
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    words = torch.nn.functional.one_hot(tokens, 32).float()
    for _ in range(20):
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=autocast):
            y = model(words)
        loss = torch.nn.functional.cross_entropy(y.float(), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.detach()


def training(mesh):
    """Twenty steps by DDP and FSDP2, checkpointed and compiled but for one layer: torch's own losses."""
    device, rank = mesh.device_type, mesh.get_local_rank()
    tokens, targets = (torch.randint(32, (16,)).to(device) for _ in range(2))
    want = torch.stack([*losses(perceptron(torch.nn.Linear).to(device), tokens, targets, True)])
    mine = slice(8 * rank, 8 * rank + 8)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for kind in ("ddp", "fsdp"):
        model = perceptron(Linear).to(device)
        counter = CompileCounterWithBackend("aot_eager")
        for block in model[:-1]:  # the last layer stays eager
            block.forward = torch.compile(block.forward, backend=counter)
        if kind == "fsdp":
            for module in (*model, model):
                fully_shard(module, mesh=mesh, mp_policy=policy)
        else:
            model = DistributedDataParallel(model)
        got = torch.stack([*losses(model, tokens[mine], targets[mine], kind == "ddp")])
        dist.all_reduce(got)
        torch.testing.assert_close(got / WORLD, want, rtol=0, atol=0.01)
        assert want[-1] < 0.8 * want[0]
        graphs = [m for graph in counter.graphs for m in graph.modules() if hasattr(m, "graph")]
        calls = [str(node.target) for m in graphs for node in m.graph.nodes]
        assert calls.count("hopgemm.gemm.default") >= 2 and "tag_activation_checkpoint" in calls, calls
        del model  # as above


def run(device, meeting, rank):
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    backend = {"cpu": "gloo", "cuda": "nccl"}[device]
    dist.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=WORLD)
    mesh = init_device_mesh(device, (WORLD,))
    checks = (products, partial_operands, tensor_parallel, no_main_grad, no_out, data_parallel, fully_sharded)
    checks += (training,)
    for check in checks:
        torch.manual_seed(0)
        check(mesh)
        print(check.__name__, flush=True)
    dist.destroy_process_group()
    print("done", flush=True)
    os._exit(0)  # at an ordinary end a thread of gloo has aborted ("terminate called ...", torch 2.13)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], int(sys.argv[3]))
