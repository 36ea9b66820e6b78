"""Settings that hold for a block of code: SM limit, batch invariance, fallback, tuning at first use.

Thread-local, like torch.no_grad: a new thread starts from the environment's values, and an `await` inside a
block carries its settings to whatever runs next on that thread. Arguments of `matmul` win over a block,
a block over the environment. Under jit and compile the settings are read while tracing.
"""

from __future__ import annotations

import contextlib
import importlib
import operator
import os
import sys
import threading
from collections import namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Any, NamedTuple, TypeVar

    F = TypeVar("F", bound=Callable[..., Any])

    class Settings(NamedTuple):
        """What `matmul` uses where its argument is None."""

        sm_limit: int
        batch_invariant: bool
        fallback: bool
        autotune: bool = False

else:  # typing.NamedTuple costs 4 ms of import
    Settings = namedtuple("Settings", "sm_limit batch_invariant fallback autotune", defaults=(False,))

ENVIRONMENT = {
    "sm_limit": "HOPGEMM_SM_LIMIT",
    "batch_invariant": "HOPGEMM_BATCH_INVARIANT",
    "fallback": "HOPGEMM_FALLBACK",
    "autotune": "HOPGEMM_AUTOTUNE",
}
_WORDS = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}

# Called with the new settings whenever a block is entered; what they return is entered with it. hopgemm.jax
# puts the settings into the key of jit's cache here.
on_enter: list[Callable[[Settings], AbstractContextManager[Any]]] = []


def shown(value: Any) -> str:
    """A wrong value as messages show it: itself where it is a word or a number, else its type."""
    kind = type(value).__name__
    is_scalar = type(value).__module__ == "numpy" and getattr(value, "shape", None) == ()
    is_plain = value is None or is_scalar or isinstance(value, (int, float, complex, str))
    return f"{value!r:.60} ({kind})" if is_plain else f"a {kind}"


def as_limit(n: int) -> int:
    """A limit on SMs as the core counts them, in 32 bits: no GPU has more."""
    return min(operator.index(n), 2**31 - 1)


def check_config(function: str, config: Any) -> str:
    """A config as the core takes it, "" where hopgemm chooses; TypeError unless it is a name or None."""
    if config is None:
        return ""
    if not isinstance(config, str):
        raise TypeError(
            f"hopgemm.{function}: config is {shown(config)}; it must be a name (str) or None. "
            "Take one from hopgemm.plan(a, b).config"
        )
    return config


def check_flag(function: str, name: str, value: Any, default: bool) -> bool:
    """The default for None; TypeError unless it is True or False: the string "0" would count as true."""
    if value is None:
        return default
    if not isinstance(value, bool):
        raise TypeError(
            f"hopgemm.{function}: {name} is {shown(value)}; it must be a bool or None. "
            f"Write {name}=True or {name}=False"
        )
    return value


def _is_numpy_integer(x: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(x, numpy.integer)


def check_sm_limit(function: str, sm_limit: Any, default: int) -> int:
    """The default for None; TypeError unless it is an integer, ValueError if it is negative."""
    if sm_limit is None:
        return default
    if isinstance(sm_limit, bool) or not (isinstance(sm_limit, int) or _is_numpy_integer(sm_limit)):
        raise TypeError(
            f"hopgemm.{function}: sm_limit is {shown(sm_limit)}; it must be an int or None. "
            "Convert it with int()"
        )
    if sm_limit < 0:
        raise ValueError(
            f"hopgemm.{function}: sm_limit is {sm_limit}; it must be 0 (all SMs) or positive. "
            "Write 0, or leave it out"
        )
    return as_limit(sm_limit)


def parse_environment(field: str) -> Any:
    """The value of a setting's variable; its neutral value where unset. ValueError names the variable."""
    name = ENVIRONMENT[field]
    text = os.environ.get(name, "").strip()
    if field == "sm_limit":
        if not (text or "0").isdecimal():
            raise ValueError(
                f"hopgemm: {name} is {text!r}; must be a number of SMs, 0 or more (0: all). Correct or "
                "unset it"
            )
        return as_limit(int(text or "0"))
    if text and text.lower() not in _WORDS:
        raise ValueError(f"hopgemm: {name} is {text!r}; must be 1 or 0. Correct or unset it")
    return _WORDS.get(text.lower(), False)


def constant_while_tracing(function: F) -> F:
    """torch.compiler.assume_constant_result without its import of Dynamo, which takes seconds.

    Dynamo calls the function while tracing and keeps the answer.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@constant_while_tracing
def environment() -> Settings:
    """What the environment asks for, read once a process."""
    if not _read:
        _read.append(Settings(*map(parse_environment, Settings._fields)))
    return _read[0]


_read: list[Settings] = []


class _Thread(threading.local):
    # HAZARD: `settings` must live in the instance: Dynamo puts no guard on a class attribute read through a
    # threading.local, and a compiled function would keep the settings of its first call.
    def __init__(self) -> None:
        self.settings: Settings | None = None  # None: outside every block
        self.blocks: list[tuple[_Setting, dict[str, Any], contextlib.ExitStack]] = []


_thread = _Thread()


def current() -> Settings:
    """The settings of this thread, here and now."""
    settings = _thread.settings
    return environment() if settings is None else settings


def is_inside_block() -> bool:
    """Is a block of this module open in this thread?"""
    return bool(_thread.blocks)


def _load_hooks() -> None:
    # HAZARD: what is jitted inside a block before hopgemm.jax is loaded lacks the settings in its cache key.
    if "jax" in sys.modules and "hopgemm.jax" not in sys.modules:
        with contextlib.suppress(ImportError):  # a jax that hopgemm.jax refuses: it says so when it is used
            importlib.import_module("hopgemm.jax")


_SUSPENDS = 0x20 | 0x80 | 0x200  # inspect.CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR


class Block(contextlib.ContextDecorator):
    """A block of settings that is also a decorator, of functions whose body runs within the call."""

    def __call__(self, function: F) -> F:
        code = getattr(function, "__code__", None)
        if code is not None and code.co_flags & _SUSPENDS:
            name = getattr(function, "__qualname__", function)
            raise TypeError(
                f"hopgemm: {name} is a coroutine or generator function; a decorator would end before its "
                "body runs. Use a with block inside it"
            )
        return super().__call__(function)


class _Setting(Block):
    """One setting for the length of a `with` block or a decorated function; reusable, safe to share."""

    def __init__(self, **change: Any) -> None:
        self._change = change

    def __enter__(self) -> None:
        _load_hooks()
        settings = current()._replace(**self._change)
        with contextlib.ExitStack() as stack:  # unwound if a hook raises
            for hook in on_enter:
                stack.enter_context(hook(settings))
            _thread.blocks.append((self, self._change, stack.pop_all()))
        _thread.settings = settings

    def __exit__(self, *exception: Any) -> bool | None:
        blocks = _thread.blocks
        # The last entry of this block, not simply the last: generators may leave their blocks out of turn.
        index = max(i for i, (block, _, _) in enumerate(blocks) if block is self)
        _, _, stack = blocks.pop(index)
        settings = environment()
        for _, change, _ in blocks:
            settings = settings._replace(**change)
        _thread.settings = settings if blocks else None
        return stack.__exit__(*exception)


def sm_limit(n: int) -> AbstractContextManager[None]:
    """Within the block (or the decorated function) hopgemm uses at most `n` SMs of a GPU; 0: all.

    Raises TypeError unless `n` is an integer, ValueError if it is negative.
    """
    if isinstance(n, bool) or not hasattr(type(n), "__index__"):
        raise TypeError(
            f"hopgemm.sm_limit: n is {shown(n)}; must be an integer, 0 for all SMs. Convert it with int()"
        )
    if operator.index(n) < 0:
        raise ValueError(f"hopgemm.sm_limit: n is {n}; must be 0 (all SMs) or more. Write 0, or leave it out")
    return _Setting(sm_limit=as_limit(n))


def batch_invariant(on: bool = True) -> AbstractContextManager[None]:
    """Within the block a row's bits depend neither on M nor on its position, batch or neighbours."""
    return _Setting(batch_invariant=_as_bool("batch_invariant", on))


def fallback(on: bool = True) -> AbstractContextManager[None]:
    """Within the block the framework's own product stands in where the kernel cannot run; it warns once."""
    return _Setting(fallback=_as_bool("fallback", on))


def autotune(on: bool = True) -> AbstractContextManager[None]:
    """Within the block `matmul` tunes a product that has no entry in the cache yet, before its first eager
    run: about a second each, see `tune`.

    In PyTorch also the products of its gradients, where operands are matrices. What is compiled, traced,
    captured in a CUDA graph, transformed or under autocast runs as chosen, and so do JAX and
    torch.distributed with several processes.
    """
    return _Setting(autotune=_as_bool("autotune", on))


def _as_bool(name: str, on: bool) -> bool:
    if not isinstance(on, bool):
        values = f"Write hopgemm.{name}(True) or hopgemm.{name}(False)"
        way = f"As a decorator: @hopgemm.{name}()" if callable(on) else values
        raise TypeError(f"hopgemm.{name}: on is {shown(on)}; must be True or False. {way}")
    return on
