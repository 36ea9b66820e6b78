"""ci/check_kernels.py on machine code written by hand: it passes a good kernel and refuses each fault."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "ci"))

import check_kernels  # noqa: E402
import sass  # noqa: E402

NAME = "_ZN7hopgemm9instances12bf16_kk_toy1ENS_1PE"

# Two loops: the outer one walks tiles, the inner one (0x20 to 0x60, and its spin at 0xa0) is the main loop.
CODE = """
    Function : {name}
        /*0000*/                   S2R R0, SR_TID.X ;             /* 0x0000000000007919 */
        /*0010*/                   UMOV UR4, 0x400 ;              /* 0x0000040000047882 */
        /*0020*/                   SYNCS.PHASECHK P1, [UR4], R7 ; /* 0x0000040000047882 */
        /*0030*/              @!P1 BRA 0xa0 ;                     /* 0x0000040000047882 */
        /*0040*/                   HGMMA.64x256x16 R24, gdesc[UR8], R24 ;
        /*0050*/                   HGMMA.64x256x16 R24, gdesc[UR8], R24, gsb0 ;
        /*0060*/               @P0 BRA 0x20 ;                     /* 0xfffffffc00d80947 */
        /*0070*/                   STSM.16.M88.4 [R3], R24 ;      /* 0x0000040000047882 */
        /*0080*/                   BRA.U UP0, 0x10 ;
        /*0090*/                   EXIT ;                         /* 0x000000000000794d */
        /*00a0*/                   SYNCS.PHASECHK P1, [UR4], R7 ;
        /*00b0*/              @!P1 BRA 0xa0 ;
        /*00c0*/                   BRA 0x40 ;
        /*00d0*/                   BRA 0xd0;                      /* 0xfffffffc00fc7947 */
"""
LOG = """
ptxas info    : Compiling entry function '{name}' for 'sm_90a'
ptxas info    : Function properties for {name}
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 1024 bytes smem
"""
USAGE = " Function {name}:\n  REG:168 STACK:0 SHARED:1024 LOCAL:0 CONSTANT[0]:540 TEXTURE:0\n"


def check(code=CODE, usage=USAGE, log=LOG):
    texts = (text.replace("{name}", NAME) for text in (code, usage, log))
    code, usage, log = texts
    return check_kernels.check(sass.parse(code.splitlines()), usage, log)


def test_good_kernel():
    assert check() == ([], {"bf16_kk_toy1": {"registers": 168, "main_loop": 8, "hgmma": 2}})


def test_loops():
    (function,) = sass.parse(CODE.splitlines())
    loop = sass.main_loop(function, "HGMMA")
    assert sorted(loop.body) == [0x20, 0x30, 0x40, 0x50, 0x60, 0xA0, 0xB0, 0xC0]
    assert sass.main_loop(function, "STSM").head == 0x10
    assert sass.main_loop(function, "EXIT") is None


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"log": LOG.replace("0 bytes spill loads", "8 bytes spill loads")}, "8 bytes spill loads"),
        ({"log": LOG.replace("0 bytes stack", "16 bytes stack")}, "16 bytes stack frame"),
        ({"log": LOG + "ptxas info : (C7510) Potential Performance Loss: wgmma"}, "C7510"),
        ({"log": LOG + "ptxas warning : (C7508) setmaxnreg ignored"}, "C7508"),
        ({"log": ""}, "not in the build log"),
        ({"usage": USAGE.replace("STACK:0", "STACK:32")}, "STACK:32"),
        ({"usage": USAGE.replace("LOCAL:0", "LOCAL:4")}, "LOCAL:4"),
        ({"code": CODE.replace("STSM.16", "HMMA.16").replace("HGMMA", "HMMA")}, "no loop with HGMMA (0"),
        ({"code": CODE.replace("@P0 BRA 0x20", "@P0 BRA 0x70").replace("0x10 ;", "0x90 ;")}, "no loop"),
        ({"code": CODE.replace("SYNCS.PHASECHK P1", "MEMBAR.ALL.GPU")}, "MEMBAR among HGMMA, at 0x20"),
        ({"code": CODE.replace("@!P1 BRA 0xa0 ;    ", "@!P1 MEMBAR.SC.GPU ;", 1)}, "at 0x30"),
        ({"code": CODE.replace("BRA.U UP0, 0x10 ;", "UTMASTG.4D [UR8], [UR4] ;")}, "bulk store at 0x80"),
        ({"code": ""}, "no matrix product"),
    ],
)
def test_fault(fault, message):
    problems, _ = check(**fault)
    assert any(message in problem for problem in problems), problems


def test_membar_outside_the_loop_is_allowed():
    assert check(code=CODE.replace("STSM.16.M88.4 [R3], R24", "MEMBAR.ALL.CTA"))[0] == []


def test_only_a_cta_scope_membar_may_lie_between_two_main_loops():
    """As in a cooperative kernel: its first steps stand before the loop, a piece of the epilogue between."""
    first_step = CODE.replace("UMOV UR4, 0x400 ;     ", "HGMMA.64x256x16 R24, gdesc[UR8], R24 ;")
    later_step = first_step.replace("BRA.U UP0, 0x10 ;", "HGMMA.64x256x16 R24, gdesc[UR8], R24 ;")
    fence = later_step.replace("STSM.16.M88.4 [R3], R24", "MEMBAR.ALL.CTA")
    assert check(code=fence)[0] == []
    assert any("at 0x70" in problem for problem in check(code=fence.replace("ALL.CTA", "ALL.GPU"))[0])
    in_loop = CODE.replace("HGMMA.64x256x16 R24, gdesc[UR8], R24, gsb0", "MEMBAR.ALL.CTA")
    assert any("at 0x50" in problem for problem in check(code=in_loop)[0])


def test_indirect_branch_is_refused():
    with pytest.raises(ValueError, match="indirect branch at 0x90"):
        check(code=CODE.replace("EXIT", "BRX R2 -0x40"))


def test_table_has_one_line_for_each_kernel():
    text = check_kernels.as_text("NVIDIA 13.0.88", {"b": {"registers": 1}, "c": {"registers": 2}})
    assert [line for line in text.splitlines() if "registers" in line][1] == '  "c": {"registers": 2}'


def test_committed_table_names_the_compiled_configs():
    import json

    from hopgemm import _core

    table = json.loads(check_kernels.TABLE.read_text())["kernels"]
    assert sorted(table) == sorted(_core.configs())
