"""hopgemm._core on a Hopper GPU: what it says of the device, and its gemm on any DLPack array."""

import pytest

torch = pytest.importorskip("torch")

from torch_cases import operand  # noqa: E402

import hopgemm  # noqa: E402
from hopgemm import _core  # noqa: E402

pytestmark = pytest.mark.gpu


def test_device_facts():
    info = hopgemm.device_info(0)
    assert info["compute_capability"] == (9, 0)
    assert (
        hopgemm.sm_count(0) == info["sm_count"] == torch.cuda.get_device_properties(0).multi_processor_count
    )
    if info["name"] == "NVIDIA H200":  # as is planned with anywhere
        assert (info["l2_bytes"], info["dram_bytes_per_cycle"]) == (62914560, 2500)


def test_gemm_on_any_dlpack_array():
    a, b = operand(100, 64, torch.bfloat16, True, True), operand(64, 120, torch.bfloat16, True, True)
    out = torch.empty(100, 120, device="cuda", dtype=torch.float32)
    bias, c = torch.ones(120, device="cuda"), torch.full((100, 120), 2.0, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    _core.gemm(a, b, out, c=c, bias=bias, alpha=2.0, beta=3.0, stream=stream)
    assert torch.equal(out, 2 * (a.float() @ b.float()) + 3 * c + bias)
    odd = torch.ones(33, 7, device="cuda", dtype=torch.bfloat16)
    small = torch.empty(33, 33, device="cuda", dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="workspace of"):
        _core.gemm(odd, odd.t(), small, stream=stream)
    _core.gemm(odd, odd.t(), small, workspace=torch.empty(1 << 20, device="cuda"), stream=stream)
    assert (small == 7).all()
    cupy = pytest.importorskip("cupy")
    x, y = cupy.ones((64, 72), cupy.float16), cupy.ones((72, 40), cupy.float16)
    d = cupy.zeros((64, 40), cupy.float16)
    _core.gemm(x, y, d, stream=cupy.cuda.get_current_stream().ptr)
    assert (cupy.asnumpy(d) == 72).all()
