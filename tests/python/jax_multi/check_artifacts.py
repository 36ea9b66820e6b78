"""Programs stored by every release, and what becomes of a config that this version does not know."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from host_kernel import BF16, LIB, W, X, hj, last_call
from jax_artifacts import FOLDER, PROGRAMS, check, export, load, stored

from hopgemm import _jax_target

UNKNOWN = "bf16_kn_32x32x32_c1x1_s9_of_another_version"


def test_every_version_stored_its_programs():
    versions = sorted(path.name for path in FOLDER.iterdir())
    assert "0.1.0" in versions
    for version in versions:
        assert [name for name in stored() if name.startswith(version + "/")], version
    assert {f"0.1.0/{name}" for name in PROGRAMS} <= {*stored()}


@pytest.mark.parametrize("name", stored())
def test_a_stored_program_loads_and_runs(name):
    before = LIB.host_calls()
    check(name)
    assert LIB.host_calls() > before


def test_a_stored_program_holds_the_options():
    check("0.1.0/options")
    assert last_call()["sm_limit"] == "64" and last_call()["batch_invariant"] == "1"


def calls_of(program):
    """Each call of ours in an exported program: the target and the attributes' names."""
    calls = re.findall(r"custom_call @(hopgemm\.\S+?)\(.*?backend_config = {(.*?)}", program.mlir_module())
    return [(target, re.findall(r"(\w+) = ", attributes)) for target, attributes in calls]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_written_now_makes_the_calls_that_the_stored_one_makes(name):
    """Another set of attributes would need another target."""
    now = calls_of(export(name))
    assert now == calls_of(load(f"0.1.0/{name}")) and now and all(attributes for _, attributes in now)


def planned_as(monkeypatch, config, workspace=None):
    """Programs lowered from now on name this config, and bring this much workspace."""
    plan = _jax_target.plan
    monkeypatch.setattr(
        _jax_target, "plan", lambda *args: (config, plan(*args)[1] if workspace is None else workspace)
    )


def program(*shapes):
    args = [jax.ShapeDtypeStruct(shape, BF16) for shape in shapes]
    checks = hj.export_checks
    return jax.export.export(jax.jit(hj.matmul), platforms=["cpu"], disabled_checks=checks)(*args)


def test_an_unknown_config_gives_way_to_the_selector_and_is_named_once(monkeypatch, capfd):
    jax.block_until_ready(hj.matmul(X, W))
    chosen = last_call()["planned"]
    planned_as(monkeypatch, UNKNOWN)
    e = jax.export.deserialize(program(X.shape, W.shape).serialize())
    for _ in range(3):
        np.testing.assert_array_equal(
            np.asarray(e.call(X, W), "f4"), np.asarray(X, "f4") @ np.asarray(W, "f4")
        )
    assert last_call()["config"] == UNKNOWN and last_call()["planned"] == chosen
    said = capfd.readouterr().err
    assert (
        said.count("of a compiled JAX program") == 1
        and f"config '{UNKNOWN}'" in said
        and f"using '{chosen}'" in said
    )


def test_too_little_workspace_is_refused(monkeypatch):
    planned_as(monkeypatch, "auto", workspace=0)
    with pytest.raises(
        Exception, match="needs [0-9]+ bytes of workspace and the program has 0.*lower it again"
    ):
        jax.block_until_ready(program((7, 5), (5, 3)).call(jnp.ones((7, 5), BF16), jnp.ones((5, 3), BF16)))
