"""The settings: nesting, exceptions, threads, decorators, hooks, environment, torch.compile."""

import contextlib
import os
import subprocess
import sys
import threading

import pytest

import hopgemm
from hopgemm import _context
from hopgemm._context import Settings, current


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    """No variable set, and nothing read yet."""
    for name in _context.ENVIRONMENT.values():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(_context, "_read", [])


def test_blocks_nest_and_restore():
    assert current() == Settings(sm_limit=0, batch_invariant=False, fallback=False)
    with hopgemm.sm_limit(64):
        with hopgemm.batch_invariant():
            assert current() == Settings(64, True, False)
            with hopgemm.sm_limit(8), hopgemm.fallback(), hopgemm.batch_invariant(False):
                assert current() == Settings(8, False, True)
            assert current() == Settings(64, True, False)
        assert current() == Settings(64, False, False)
        with hopgemm.sm_limit(0):
            assert current().sm_limit == 0
    assert current() == Settings(0, False, False)


def test_an_exception_restores():
    with pytest.raises(KeyError), hopgemm.sm_limit(3):
        raise KeyError
    assert current().sm_limit == 0


def test_one_block_object_many_times():
    block = hopgemm.sm_limit(5)
    with block, block:
        assert current().sm_limit == 5
    with block:
        assert current().sm_limit == 5
    assert current().sm_limit == 0


def test_a_new_thread_starts_from_the_environment(monkeypatch):
    monkeypatch.setenv("HOPGEMM_SM_LIMIT", "7")
    seen = []
    with hopgemm.sm_limit(64):
        thread = threading.Thread(target=lambda: seen.append(current()))
        thread.start()
        thread.join()
        assert current().sm_limit == 64
    assert seen == [Settings(7, False, False)]


def test_threads_do_not_disturb_each_other():
    block = hopgemm.batch_invariant()  # one object, shared by all
    barrier = threading.Barrier(8)
    wrong = []

    def work(limit):
        for _ in range(50):
            with block, hopgemm.sm_limit(limit):
                barrier.wait()
                if current() != Settings(limit, True, False):
                    wrong.append(current())
                barrier.wait()
            if current() != Settings(0, False, False):
                wrong.append(current())

    threads = [threading.Thread(target=work, args=(i + 1,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_blocks_left_out_of_turn():
    """Generators may: what remains open still holds."""

    def generator():
        with hopgemm.sm_limit(4):
            yield

    inner = generator()
    with hopgemm.sm_limit(9):
        next(inner)
        assert current().sm_limit == 4
    assert current().sm_limit == 4
    inner.close()
    assert current().sm_limit == 0


def test_decorator():
    @hopgemm.sm_limit(11)
    @hopgemm.fallback()
    def countdown(n):
        """Recursive, so that one decorator is entered several times."""
        return [current(), *(countdown(n - 1) if n else [])]

    assert countdown(2) == [Settings(11, False, True)] * 3
    assert countdown.__name__ == "countdown"
    assert current() == Settings(0, False, False)


def test_decorator_refuses_what_runs_later():
    async def coroutine(): ...

    def generator():
        yield

    for function in (coroutine, generator):
        with pytest.raises(TypeError, match="with block inside"):
            hopgemm.sm_limit(1)(function)


@pytest.mark.parametrize("bad", [True, 1.5, "8", None])
def test_sm_limit_wants_an_integer(bad):
    with pytest.raises(TypeError, match="n is .*must be an integer"):
        hopgemm.sm_limit(bad)


def test_sm_limit_wants_no_negative():
    with pytest.raises(ValueError, match="n is -1; must be 0"):
        hopgemm.sm_limit(-1)


@pytest.mark.parametrize("n", [2**31 - 1, 2**31, 2**70])
def test_more_sms_than_any_gpu_has_are_all_of_them(n, monkeypatch):
    want = hopgemm.plan(m=4096, n=4096, k=4096)
    assert hopgemm.plan(m=4096, n=4096, k=4096, sm_limit=n) == want
    with hopgemm.sm_limit(n):
        assert hopgemm.plan(m=4096, n=4096, k=4096) == want
    monkeypatch.setenv("HOPGEMM_SM_LIMIT", str(n))
    assert _context.parse_environment("sm_limit") == 2**31 - 1


@pytest.mark.parametrize("manager", [hopgemm.batch_invariant, hopgemm.fallback])
def test_switches_want_a_bool(manager):
    with pytest.raises(TypeError, match="on is 1 .*must be True or False"):
        manager(1)
    with pytest.raises(TypeError, match=rf"@hopgemm\.{manager.__name__}\(\)"):
        manager(lambda: None)  # a decorator without its parentheses


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("on", True), ("TRUE", True), ("0", False), ("", False)]
)
def test_environment_switch(monkeypatch, text, value):
    monkeypatch.setenv("HOPGEMM_BATCH_INVARIANT", text)
    monkeypatch.setenv("HOPGEMM_SM_LIMIT", "12")
    assert current() == Settings(12, value, False)
    with hopgemm.fallback():
        assert current() == Settings(12, value, True)


@pytest.mark.parametrize(
    ("name", "text"),
    [("HOPGEMM_SM_LIMIT", "-3"), ("HOPGEMM_SM_LIMIT", "many"), ("HOPGEMM_FALLBACK", "perhaps")],
)
def test_environment_mistakes_name_the_variable(monkeypatch, name, text):
    monkeypatch.setenv(name, text)
    with pytest.raises(ValueError, match=f"{name} is '{text}'; must be .*unset it"):
        current()


def test_environment_is_read_once(monkeypatch):
    monkeypatch.setenv("HOPGEMM_SM_LIMIT", "2")
    assert current().sm_limit == 2
    monkeypatch.setenv("HOPGEMM_SM_LIMIT", "3")
    assert current().sm_limit == 2


def test_hooks_see_the_new_settings_and_are_left(monkeypatch):
    log = []

    @contextlib.contextmanager
    def hook(settings):
        log.append(("enter", settings.sm_limit))
        yield
        log.append(("exit", settings.sm_limit))

    monkeypatch.setattr(_context, "on_enter", [hook])
    with hopgemm.sm_limit(1), hopgemm.sm_limit(2):
        log.append(current().sm_limit)
    assert log == [("enter", 1), ("enter", 2), 2, ("exit", 2), ("exit", 1)]


def test_a_hook_that_fails_changes_nothing(monkeypatch):
    left = []

    @contextlib.contextmanager
    def good(settings):
        try:
            yield
        finally:
            left.append(settings.sm_limit)

    def bad(settings):
        raise RuntimeError("no")

    monkeypatch.setattr(_context, "on_enter", [good, bad])
    with pytest.raises(RuntimeError, match="no"), hopgemm.sm_limit(6):
        pass
    assert left == [6]
    assert current().sm_limit == 0
    assert not _context.is_inside_block()


def test_a_block_loads_hopgemm_jax_where_jax_is_loaded():
    """Else the settings would be missing from the cache key of what is jitted in the block."""
    pytest.importorskip("jax")
    code = (
        "import sys, jax, hopgemm\n"
        "assert 'hopgemm.jax' not in sys.modules\n"
        "with hopgemm.sm_limit(4): assert 'hopgemm.jax' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})


def test_torch_compile_follows_the_settings():
    torch = pytest.importorskip("torch")
    graphs = []

    def backend(module, inputs):
        graphs.append(module)
        return module.forward

    compiled = torch.compile(lambda x: x + current().sm_limit, fullgraph=True, backend=backend)
    zero = torch.zeros(1)
    seen = [compiled(zero).item()]
    with hopgemm.sm_limit(5):
        seen.append(compiled(zero).item())
    seen.append(compiled(zero).item())
    assert seen == [0, 5, 0]
    assert len(graphs) == 2  # and no third for the way back


def test_limits_are_integers():
    """Of Python or NumPy, and nothing that would have to be fetched from a device to know it."""
    numpy = pytest.importorskip("numpy")

    class Index:
        def __index__(self):
            return 3

    for good in (3, numpy.int64(3), numpy.uint8(3)):
        assert _context.check_sm_limit("plan", good, 0) == 3
    for bad in (Index(), True, numpy.True_, 1.5, "3", numpy.array(3), numpy.array([1, 2])):
        with pytest.raises(TypeError, match="hopgemm.plan: sm_limit is .*; it must be an int or None"):
            hopgemm.plan(m=64, n=64, k=64, sm_limit=bad)
