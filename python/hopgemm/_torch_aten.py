"""`override`: torch's own products of matrices, by the kernel.

The kernels and the rule of what they take are C++ (src/bindings/torch_override.h); here they come and go.
"""

# Much of what is called here has no annotations in torch.
# mypy: disable-error-code="no-untyped-call,no-any-return"
from __future__ import annotations

import ctypes
import functools
import itertools
import re
import threading
import warnings
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import torch

from ._context import Block, Settings, check_flag, check_sm_limit, current
from ._torch_library import SHARED_LIBRARY


class override(Block):
    """While active, torch's own matrix products run the kernel wherever it reads their operands in place.

        with hopgemm.torch.override() as o:
            loss = model(x).sum()  # whatever calls torch.mm, F.linear, torch.matmul, ...
            loss.backward()
        print(o)  # taken: mm 24, addmm 12; left: layout 2

    Takes the place of the CUDA kernels of aten::mm, bmm, addmm, baddbmm and their out= forms, below autograd,
    autocast, torch.func and DTensor, and under what torch.compile has compiled (except for Triton templates,
    cpp_wrapper and AOTInductor, which do not call these operators; nor does an in-place addmm_). Taken are
    calls of bfloat16 and float16 on a Hopper GPU whose operands the kernel reads in place, unless cuBLAS was
    measured to be faster at their sizes; the kernel that was there before, torch's or another overrider's,
    gets the rest. A call that is left costs about 0.3 us more (mm, bmm), 2 us (addmm, baddbmm).

    It also decorates a function. Blocks nest: the innermost one's arguments hold. It acts on all threads of
    the process (autograd runs the backward of CUDA tensors on its own), and ends, also by an exception, with
    the kernels that were there restored. Without CUDA in this torch it does nothing.

    Enter and leave the outermost block while no other thread multiplies, as torch changes the kernel of an
    operator without a lock: one block around the whole program is best. Each costs up to a millisecond and
    keeps 12 KB, up to 12 MB in all. Not inside of compiled functions.

    Args:
        batch_invariant: a mode for serving. True: takes every product that the kernel can run, whatever it
            costs, and gives each row bits that depend neither on M nor on its position, batch or neighbours.
        sm_limit: at most so many SMs; 0: all.
            None for either means what holds where the block is entered: the enclosing hopgemm.batch_invariant
            or hopgemm.sm_limit, else the environment's.

    Raises:
        TypeError, ValueError: an argument of another type, or negative.
        RuntimeError: from a product, where the launch of the kernel fails. Other errors of products are
            torch's own, but those of mm and bmm are all RuntimeErrors with torch's words: so also out of
            memory, where torch.OutOfMemoryError is a subclass.

    The results of the kernel have the same bits on every run, so that
    torch.use_deterministic_algorithms(True) is satisfied, without CUBLAS_WORKSPACE_CONFIG, by taken calls.
    """

    def __init__(self, *, batch_invariant: bool | None = None, sm_limit: int | None = None) -> None:
        check_flag("torch.override", "batch_invariant", batch_invariant, default=False)
        check_sm_limit("torch.override", sm_limit, default=0)
        self._batch_invariant, self._sm_limit = batch_invariant, sm_limit
        self._depth = 0
        self._over: Counter[tuple[str, str]] = Counter()  # calls in blocks that are over
        self._before: Counter[tuple[str, str]] = Counter()

    def __enter__(self) -> override:
        given: dict[str, Any] = {"batch_invariant": self._batch_invariant, "sm_limit": self._sm_limit}
        change = {name: value for name, value in given.items() if value is not None}
        settings = current()._replace(**change)  # raises for a wrong environment: before anything is changed
        with _lock:
            if not _frames:
                kernels().install()
            if not self._depth:
                self._before = kernels().counts()
            self._depth += 1
            _frames.append((self, settings))
            _set_policy()
        return self

    def __exit__(self, *exception: Any) -> None:
        with _lock:
            # The last entry of this block, not simply the last: threads may leave theirs out of turn.
            del _frames[max(i for i, (owner, _) in enumerate(_frames) if owner is self)]
            now = kernels().counts()
            self._over, self._before = self._over + (now - self._before), now
            self._depth -= 1
            _set_policy()
            if not _frames:
                kernels().uninstall()

    @property
    def taken(self) -> dict[str, int]:
        """Calls that ran the kernel while this was active, by operator of aten: {"mm": 24, "addmm": 12}."""
        return {operator: n for (operator, outcome), n in self._counts().items() if outcome == "taken"}

    @property
    def left(self) -> dict[str, int]:
        """Calls that did not, by reason.

        "dtype": not bfloat16 or float16. "layout": an operand would have to be copied first. "empty": a size
        or alpha is 0. "slower": at these sizes cuBLAS was measured to be faster. "device": no kernel for this
        GPU. "arguments": shapes, dtypes, devices or scalars that torch has to judge, or no memory. "refused":
        sizes or an overlap that hopgemm.torch.matmul refuses.
        """
        reasons: Counter[str] = Counter()
        for (_, outcome), n in self._counts().items():
            reasons[outcome] += n
        del reasons["taken"]
        return dict(reasons)

    def _counts(self) -> Counter[tuple[str, str]]:
        with _lock:
            return self._over + (kernels().counts() - self._before) if self._depth else self._over

    def __repr__(self) -> str:
        parts = [
            f"{title}: {', '.join(f'{name} {n}' for name, n in calls.items()) or 'none'}"
            for title, calls in (("taken", self.taken), ("left", self.left))
        ]
        return "; ".join(parts)


_lock = threading.RLock()
# HAZARD: torch frees a kernel that is taken away, though a call of another thread may be about to run it. So
# the kernels of the last 1000 blocks, some 12 MB, are kept.
_kept: deque[Any] = deque(maxlen=8000)
_frames: list[tuple[override, Settings]] = []  # the blocks that are open, in order of entry


def _set_policy() -> None:
    if _frames:
        settings = _frames[-1][1]
        sm_limit = min(settings.sm_limit, 2**31 - 1)  # HAZARD: ctypes would cut a larger one short
        kernels().library.hopgemm_override_policy(True, settings.batch_invariant, sm_limit)
    else:
        kernels().library.hopgemm_override_policy(False, False, 0)


@functools.cache
def kernels() -> Kernels:
    """The kernels of this process."""
    return Kernels()


class Kernels:
    """The C++ kernels, which come and go together.

    key: the dispatch key that they stand at. operators: the names of what they take, without "aten::".
    """

    def __init__(self) -> None:
        self.library = library = ctypes.PyDLL(SHARED_LIBRARY)  # its functions want the GIL
        for name in ("key", "operator", "outcome", "install"):
            getattr(library, f"hopgemm_override_{name}").restype = ctypes.c_char_p
        library.hopgemm_override_count.restype = ctypes.c_int64
        library.hopgemm_override_python_kernel.restype = ctypes.py_object
        prepare = library.hopgemm_override_prepare
        prepare.argtypes = [ctypes.c_int, ctypes.py_object, ctypes.c_bool, ctypes.py_object]
        prepare.restype = ctypes.c_char_p
        library.hopgemm_override_policy.argtypes = [ctypes.c_bool, ctypes.c_bool, ctypes.c_int]
        self.key = library.hopgemm_override_key().decode()
        self.operators = _names(library.hopgemm_override_operator)
        self._outcomes = _names(library.hopgemm_override_outcome)
        # operator -> what undoes its installation, torch's name of the kernel
        self._installed: dict[str, tuple[Callable[[], Any], str]] = {}

    def counts(self) -> Counter[tuple[str, str]]:
        """Calls of this process by operator and outcome: "taken", or why not."""
        count = self.library.hopgemm_override_count
        return Counter(
            {
                (operator, outcome): count(i, j)
                for i, operator in enumerate(self.operators)
                for j, outcome in enumerate(self._outcomes)
            }
        )

    def install(self) -> None:
        """Puts ours over what stands there, unless this torch is without CUDA."""
        if not torch._C._dispatch_has_kernel_for_dispatch_key("aten::mm", self.key):
            return
        # torch warns once a process, at the first kernel that is registered over another: on stderr from C,
        # as a Python warning from Python. So the first registration is one from Python, and ignored.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered kernel")
            try:
                for index in reversed(range(len(self.operators))):
                    if self.operators[index] not in self._installed:
                        self._install_one(index)
            except BaseException:
                self.uninstall()
                raise

    def uninstall(self) -> None:
        """Takes ours away where they are on top.

        HAZARD: whoever registered after us may fall through to our kernel, and torch raises at a call of a
        kernel that is gone. Then ours stays, switched off, until an exit that finds it on top.
        """
        for operator, (undo, name) in list(self._installed.items()):
            if repr(self._at(operator)) == name:
                undo()
                del self._installed[operator]

    def _at(self, operator: str) -> Any:
        return torch.library.get_kernel(f"aten::{operator}", self.key)

    def _install_one(self, index: int) -> None:
        operator = self.operators[index]
        kernel = self._at(operator)
        keyset = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, self.key))
        previous = functools.partial(kernel.call_boxed, keyset)
        is_torchs = re.search(rf"/aten/src/ATen/Register{self.key}(_\d+)?\.cpp", repr(kernel)) is not None
        # HAZARD: its sibling for one capsule leaks the tensor (torch 2.13).
        tensors = torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs
        is_python = "add" in operator  # a function for Python: the C ABI has no Scalar
        called = previous if is_python else functools.partial(_call, previous, tensors)
        _check(self.library.hopgemm_override_prepare(index, called, is_torchs, tensors))
        if is_python:
            fragment = torch.library.Library("aten", "IMPL")
            function = self.library.hopgemm_override_python_kernel(index)
            # Torch 2.10 refuses to go over another kernel from Python unless it is told that this is meant.
            fragment.impl(operator, function, self.key, allow_override=True)
            undo = fragment._destroy
        else:
            _check(self.library.hopgemm_override_install(index))
            undo = functools.partial(self.library.hopgemm_override_remove, index)
        ours = self._at(operator)
        _kept.append((ours, called))
        self._installed[operator] = undo, repr(ours)


def _check(error: bytes | None) -> None:
    if error:
        raise RuntimeError(f"hopgemm.torch.override: {error.decode()}")


def _names(function: Any) -> tuple[str, ...]:
    """What an exported list gives for 0, 1, ... until None."""
    return tuple(name.decode() for name in iter(map(function, itertools.count()).__next__, None))


def _call(previous: Callable[..., Any], tensors: Callable[[list[Any]], Any], capsules: list[Any]) -> Any:
    """`previous` as the C kernels of mm and bmm call it."""
    a, b, *out = tensors(capsules)
    return previous(a, b, out=out[0]) if out else previous(a, b)
