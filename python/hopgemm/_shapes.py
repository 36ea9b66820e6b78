"""The shapes that are measured: (M, N, K), grouped in suites. The lists only grow: records refer to them."""

from __future__ import annotations

Shape = tuple[int, int, int]

BIG_SQUARES: tuple[Shape, ...] = tuple((size, size, size) for size in (4096, 8192, 16384))

# Linear layers of GPT-2 small, 8 x 1024 tokens: qkv, attention output, up, down, vocabulary.
GPT2_LAYERS: tuple[Shape, ...] = tuple(
    (8192, n, k) for n, k in ((2304, 768), (768, 768), (3072, 768), (768, 3072), (50304, 768))
)

_SQUARES = (512, 1024, 1536, 2048, 3072, 4096, 5000, 6144, 8192, 12288, 16384)

# (N, K) of linear layers. Llama: hidden 4096 (8B) and 8192 (70B): qkv, attention output, gate and up, down.
_LLAMA = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (10240, 8192), (8192, 28672))
# DeepSeek V3: kv and query down-projection, shared expert, query up-projection, attention output.
# Vocabularies: DeepSeek's and Llama 3's.
_DEEPSEEK = ((2112, 7168), (7168, 2048), (4096, 7168), (32768, 512), (7168, 16384), (24576, 1536))
_VOCABULARIES = ((129280, 7168), (128256, 4096))
_TOKENS = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)

_TALL = ((17024, 256, 4096), (65536, 128, 1024), (131072, 512, 512), (65536, 1024, 1024))
_WIDE = ((128, 65536, 1024), (256, 50304, 4096), (512, 131072, 512))
_LONG_K = ((512, 512, 65536), (1024, 1024, 32768), (256, 1024, 131072), (64, 128, 65536))
_SHORT_K = ((8192, 8192, 128), (8192, 8192, 64), (16384, 4096, 256), (4096, 4096, 32))
_ODD = (
    (8192, 50257, 768),
    (8192, 50304, 768),
    (8192, 3072, 768),
    (4097, 4095, 4104),
    (1000, 1000, 1000),
    (777, 1111, 2048),
    (2048, 4096, 4095),
    (33, 65, 129),
)

SUITES: dict[str, tuple[Shape, ...]] = {
    # Twelve that stand for the rest: two minutes and a half on one H200.
    "core": (
        (8192, 8192, 8192),
        (4096, 4096, 4096),
        (2048, 2048, 2048),
        (1024, 1024, 1024),
        (4096, 4096, 14336),
        (2048, 28672, 4096),
        (1024, 6144, 4096),
        (512, 4096, 7168),
        (8192, 50257, 768),
        (128, 4096, 7168),
        (64, 28672, 4096),
        (16, 4096, 14336),
    ),
    "squares": tuple((size, size, size) for size in _SQUARES),
    "llm": tuple((m, n, k) for n, k in (*_LLAMA, *_DEEPSEEK, *_VOCABULARIES) for m in _TOKENS),
    "edges": (*_TALL, *_WIDE, *_LONG_K, *_SHORT_K, *_ODD),
    # Layers of Llama at 4096 tokens: their training steps are measured ("training-nk", "training-kn").
    "training": tuple((4096, n, k) for n, k in _LLAMA),
}
SUITES["all"] = tuple(dict.fromkeys(shape for suite in SUITES.values() for shape in suite))


def format_shape(shape: Shape) -> str:
    """(4096, 2048, 512) as "4096x2048x512"."""
    return "x".join(map(str, shape))


def parse_shape(text: str) -> Shape:
    """ "4096x2048x512" as (4096, 2048, 512). ValueError for anything but three positive integers."""
    sizes = text.lower().split("x")
    if len(sizes) != 3 or not all(size.isdecimal() and int(size) > 0 for size in sizes):
        raise ValueError(f"shape {text!r}: must be MxNxK, three positive integers, such as 4096x4096x4096")
    m, n, k = map(int, sizes)
    return m, n, k


def select(suite: str, part: tuple[int, int] = (1, 1)) -> tuple[Shape, ...]:
    """The i-th of n parts of a suite, dealt like cards. ValueError unless 1 <= i <= n."""
    index, count = part
    if not 1 <= index <= count:
        raise ValueError(f"part {index}/{count}: must be i/n with 1 <= i <= n")
    return SUITES[suite][index - 1 :: count]
