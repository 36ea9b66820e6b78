"""The file of tuned configs: whatever it holds is harmless, and what is good in it reaches the calls."""

import json
import os
import subprocess
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopgemm import _cache, _core, _tune
from hopgemm._cache import Key, Tuned
from hopgemm._cli import main

GPU = "NVIDIA H200"
KEY = Key("bfloat16", "bfloat16", "kk", 4096, 4096, 4096, 1, 1, 132, False)
CONFIG = "bf16_kk_128x128x64_c2x1_s6_pingpong+n8"


def entry(m=4096, config=CONFIG, **changed):
    fields = {"gpu": GPU, "driver": _core.driver_version(), "hopgemm": _cache.version()}
    fields |= {"key": KEY._replace(m=m), "config": config, "microseconds": 190.0}
    fields |= {"default_config": "bf16_kk_128x256x64_c2x1_s4_coop", "default_microseconds": 200.0}
    return Tuned(**(fields | changed))


@pytest.fixture
def path(tmp_path, monkeypatch):
    """The file's path, for this process alone; nothing is in force before and after."""
    path = tmp_path / "cache" / "tuned.json"
    monkeypatch.setenv("HOPGEMM_CACHE", str(path))
    monkeypatch.setattr(_cache, "_in_force", {})
    monkeypatch.setattr(_cache, "_installed", False)
    monkeypatch.setattr(_cache, "_frozen", False)
    yield path
    _core.set_tuned([])


def chosen(key=KEY, **options):
    product, where = _cache.arguments(key, GPU)
    plan = _core.plan(*product, **where, **options)
    return plan["config"], plan["reason"]


# ---- where ----


@pytest.mark.parametrize(
    ("environment", "want"),
    [
        ({"HOPGEMM_CACHE": "/x/y.json"}, "/x/y.json"),
        ({"HOPGEMM_CACHE": "~/y.json", "HOME": "/h"}, "/h/y.json"),
        ({"HOPGEMM_CACHE": "off", "HOME": "/h"}, None),
        ({"HOPGEMM_CACHE": " OFF ", "HOME": "/h"}, None),
        ({"HOPGEMM_CACHE": "", "HOME": "/h"}, "/h/.cache/hopgemm/tuned-v1.json"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/c"}, "/c/hopgemm/tuned-v1.json"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "relative"}, "/h/.cache/hopgemm/tuned-v1.json"),
    ],
)
def test_location(monkeypatch, environment, want):
    for name in ("HOPGEMM_CACHE", "HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = _cache.location()
    assert (found and str(found)) == want
    assert _cache.is_named() == (want is not None and "y.json" in want)


def test_a_home_that_does_not_exist(path, monkeypatch):
    monkeypatch.setenv("HOPGEMM_CACHE", "~nobody-of-this-name/y.json")
    with pytest.warns(RuntimeWarning, match="no such home"):
        assert _cache.location() is None
    with pytest.warns(RuntimeWarning, match="no such home"):
        _cache.install()
    assert chosen()[0]  # a plan all the same


# ---- from the file to the plan ----


def test_an_entry_answers_for_its_product_alone(path):
    _cache.store([entry()])
    _cache.install()
    assert chosen() == (CONFIG, "tuned on this card")
    assert chosen(tuned=False)[1] != "tuned on this card"
    assert chosen(config="bf16_kk_64x128x64_c1x1_s8_pingpong")[1] == "asked for by name"
    others = {"m": 4097, "n": 4095, "k": 64, "majors": "kn", "out_dtype": "float32", "dtype": "float16"}
    others |= {"batch_inner": 2, "batch_outer": 2, "sm_count": 100, "batch_invariant": True}
    for name, value in others.items():
        key = KEY._replace(**{name: value})
        if name == "dtype":
            key = key._replace(out_dtype=value)
        assert chosen(key)[1] != "tuned on this card", name
    product, where = _cache.arguments(KEY, "NVIDIA H100 80GB HBM3")
    assert _core.plan(*product, **where)["reason"] != "tuned on this card"


def test_hopgemm_plan_says_so_in_a_process_of_its_own(path):
    _cache.store([entry()])
    code = "import hopgemm; print(hopgemm.plan(m=4096, n=4096, k=4096))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "tuned on this card" in done.stdout and CONFIG in done.stdout


@pytest.mark.parametrize(
    "bad",
    [
        {"config": "bf16_kn_128x128x64_c2x1_s6_pingpong"},  # other majors
        {"config": "bf16_kk_128x128x64_c2x1_s6_nothing"},
        {"config": "bf16_kk_128x128x64_c2x1_s6_pingpong+n0"},
        {"config": "auto"},
        {"driver": 1},
        {"hopgemm": "0.0.0-other"},
    ],
)
def test_what_cannot_be_used_is_ignored(path, bad):
    before = chosen()
    _cache.store([entry(**bad)])
    _cache.install()
    assert chosen() == before
    assert _cache.in_force() == []


def test_a_cluster_that_does_not_fit_the_sm_limit_is_ignored(path):
    key = KEY._replace(sm_count=1)
    before = chosen(key)
    _cache.adopt([entry(key=key)])
    assert chosen(key) == before
    _core.set_tuned([(GPU, tuple(key), CONFIG)])  # past every check in Python
    assert chosen(key) == before


# ---- broken and hostile files ----


FOREIGN = {
    "text": b"hello",
    "not UTF-8": b"\xff\xfe{}",
    "deep": b"[" * 100_000,
    "a list": b"[]",
    "an object": b'{"entries": []}',
    "another schema": b'{"schema": "https://example.com", "entries": []}',
    "too large": b" " * (4 << 20) + b"hello",
}
DAMAGED = {
    "empty": b"",
    "a line": b"\n",
    "cut off": b'{"schema": 1, "entries": [',
    "other bytes": b'{"schema": 1, "entries": [\xff\xfe',
    "sorted": b'{"entries": 7, "schema": 1}',
    "other schema": b'{"schema": 2, "entries": []}',
    "no entries": b'{"schema": 1}',
    "entries is a number": b'{"schema": 1, "entries": 7}',
    "entries of numbers": b'{"schema": 1, "entries": [1, null, "x", [], {}]}',
    "large": b'{"schema": 1, "entries": []}' + b" " * (4 << 20),
}


def ignored(path, content):
    """Is the file, with that content, left out with a warning?"""
    path.parent.mkdir()
    path.write_bytes(content)
    before = chosen()
    with pytest.warns(RuntimeWarning, match="hopgemm cache clear"):
        _cache.install()
    return chosen() == before and _cache.in_force() == []


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_ignored_and_replaced(path, content):
    assert ignored(path, content)
    _cache.store([entry()])
    assert _cache.read(path) == ([entry()], [])
    path.write_bytes(content)
    _cache.remove(path)
    assert not path.exists()


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
def test_somebody_elses_file_is_ignored_and_left_alone(path, content, capsys):
    assert ignored(path, content)
    with pytest.raises(OSError, match="not a file of tuned configs"):
        _cache.store([entry()])
    with pytest.warns(RuntimeWarning, match="cannot be written .*is left alone"):
        _tune.keep([entry()])
    assert main(["cache", "clear"]) == 1
    assert "is left alone" in capsys.readouterr().err
    assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]  # no lock beside it
    assert chosen() == (CONFIG, "tuned on this card")


def make_pipe(path):
    os.mkfifo(path)
    return os.open(path, os.O_RDWR)  # somebody has it open, and writes nothing


@pytest.mark.parametrize("make", [make_pipe, os.mkdir, lambda path: path.symlink_to("/dev/null")])
def test_what_is_no_file_is_ignored_and_left_alone(path, make):
    path.parent.mkdir()
    make(path)
    before = path.lstat()
    with pytest.warns(RuntimeWarning, match="ignored in the cache"):
        _cache.install()
    assert _cache.in_force() == []
    for write in (lambda: _cache.store([entry()]), lambda: _cache.remove(path)):
        with pytest.raises(OSError):
            write()
    assert os.path.samestat(path.lstat(), before)


FIELDS = sorted(entry().as_json())
STRANGE = [None, True, -1, 0, 2**31 - 1, 2**31, 10**400, 1.5, float("nan"), [], {}]
STRANGE += ["", "x" * 1000, "../..", "%s%n", "NVIDIA\u202eH200", "H\u00b2", "\ud800", "a\nb", "a\x1b[31mb"]


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_of_another_type_or_range_drops_its_entry(path, name):
    """What passes all the same is a legal value, and stays one through the whole way."""
    path.parent.mkdir()
    before = chosen()
    for value in STRANGE:
        raw = [entry().as_json() | {name: value}, entry(m=8).as_json()]
        path.write_text(json.dumps({"schema": 1, "entries": raw}))
        entries, problems = _cache.read(path)
        assert len(entries) + len(problems) == 2 and entry(m=8) in entries
        _cache.adopt(entries[:-1])
        assert chosen() in (before, (CONFIG, "tuned on this card"))
    assert problems  # {} is no field's type


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=12),
    max_leaves=30,
)


@settings(max_examples=80, deadline=None)
@given(JSON)
def test_any_json_is_harmless(tmp_path_factory, raw):
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps({"schema": 1, "entries": [raw] if not isinstance(raw, list) else raw}))
    entries, _ = _cache.read(path)
    assert all(isinstance(x, Tuned) for x in entries)
    assert all(isinstance(_cache.problem_of(x), (str, type(None))) for x in entries)


@pytest.mark.parametrize("name", ["gpu", "hopgemm"])
def test_names_are_printable_ascii(path, name):
    path.parent.mkdir()
    good, bad = "NVIDIA H200 (x)~", ["NVIDIA\u202eH200", "H\u00b2", "\ud800", "a\nb", "a\x1b[31mb", "a\0"]
    raw = [entry(m=i + 1).as_json() | {name: x} for i, x in enumerate([*bad, good])]
    path.write_text(json.dumps({"schema": 1, "entries": raw}))
    entries, problems = _cache.read(path)
    assert [getattr(x, name) for x in entries] == [good]
    assert len(problems) == len(bad) and all(x.isprintable() for x in problems)


MAX = 2**31 - 1
HUGE = [
    {"m": MAX, "n": MAX, "k": MAX, "batch_inner": 8},
    {"m": MAX, "n": MAX, "k": MAX, "batch_inner": MAX, "batch_outer": MAX},
    {"m": 2**24, "n": 2**24, "k": 2**24, "batch_inner": 2},
    {"m": 1, "n": 1, "k": 1, "batch_inner": MAX, "batch_outer": MAX},
    {"m": MAX, "n": 1, "k": 1, "batch_outer": MAX},
]


@pytest.mark.parametrize("sizes", HUGE)
def test_a_product_that_no_memory_holds_is_no_entry(path, sizes):
    """Its strides may not fit 64 bits. Importing a framework goes on, with a warning."""
    path.parent.mkdir()
    raw = [entry().as_json() | sizes, entry().as_json()]
    path.write_text(json.dumps({"schema": 1, "entries": raw}))
    with pytest.warns(RuntimeWarning, match="is too large"):
        _cache.install()
    assert _cache.in_force() == [entry()]
    _cache.adopt([entry(key=KEY._replace(**sizes))])  # past the check of the file
    assert _cache.in_force() == [entry()]


def test_the_largest_products_reach_the_core_in_one_piece():
    """What the file's check lets through overflows nothing on its way to a plan."""
    ok = {"m": 2**24, "n": 2**24, "k": 2**24}, {"m": MAX, "n": 2**17, "k": 1}, {"m": 1, "n": 1, "k": 1}
    for sizes in (*ok[:2], ok[2] | {"batch_inner": 2**24, "batch_outer": 2**24}):
        huge = _cache._entry(entry().as_json() | sizes)
        assert "incompatible function arguments" not in (_cache.problem_of(huge) or "")


def test_a_key_that_no_product_has_is_no_entry():
    impossible = KEY._replace(m=2**31 - 1, n=2**31 - 1)
    assert _cache.problem_of(entry(key=impossible))
    assert _cache.problem_of(entry()) is None


# ---- writing ----


def test_a_new_entry_replaces_its_own_old_one_alone(path):
    _cache.store([entry(m=1), entry(m=2), entry(m=1, driver=5)])
    _cache.store([entry(m=1, microseconds=1.0)])
    assert {(e.key.m, e.driver, e.microseconds) for e in _cache.read(path)[0]} == {
        (1, _core.driver_version(), 1.0),
        (2, _core.driver_version(), 190.0),
        (1, 5, 190.0),
    }
    assert [x for x in path.parent.iterdir() if x.suffix == ".part"] == []


def longest(m):
    """Quotes and backslashes are escaped in the file. Other sizes may add 30 digits at most."""
    widest = 2.2250738585072014e-308
    key = Key("bfloat16", "bfloat16", "kk", m, MAX, 2**17 - 1, 1, 1, MAX, False)
    return entry(key=key, gpu='"' * 63, hopgemm="\\" * 63, driver=MAX, config="x" * 95,
                 default_config="x" * 95, microseconds=widest, default_microseconds=widest)  # fmt: skip


def test_the_largest_file_fits_and_the_oldest_entries_go(path):
    count = _cache._MAX_ENTRIES
    everything = [longest(m + 1) for m in range(count)]
    _cache.store(everything)
    assert _cache.read(path) == (everything, [])
    lines = path.read_text().splitlines()
    assert len(lines) == count + 2 and max(map(len, lines)) + 30 < 1024  # an entry a line
    assert path.stat().st_size < _cache._MAX_BYTES
    _cache.store([everything[0], longest(count + 1)])  # what is stored again is new
    found, problems = _cache.read(path)
    assert problems == [] and len(found) == count
    assert found[-2:] == [everything[0], longest(count + 1)] and found[0] == everything[2]


def test_of_too_many_entries_the_last_count(path):
    path.parent.mkdir()
    raw = [entry(m=m + 1).as_json() for m in range(_cache._MAX_ENTRIES + 2)]
    path.write_text(json.dumps({"schema": 1, "entries": raw}))
    entries, problems = _cache.read(path)
    assert [x.key.m for x in entries] == list(range(3, _cache._MAX_ENTRIES + 3))
    assert problems == [f"{path}: 4098 entries; the last 4096 count"]
    _cache.store([entry(m=1)])
    assert [x.key.m for x in _cache.read(path)[0]] == [*range(4, _cache._MAX_ENTRIES + 3), 1]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o600])
def test_the_file_keeps_its_mode(path, mode):
    _cache.store([entry()])
    path.chmod(mode)
    _cache.store([entry(m=1)])
    assert path.stat().st_mode & 0o777 == mode and len(_cache.read(path)[0]) == 2


def test_after_freeze_nothing_new_is_in_force(path):
    _cache.adopt([entry()])
    assert _cache.freeze() == [entry()]
    before = chosen(KEY._replace(m=512))
    with pytest.warns(RuntimeWarning, match="have compared.*does not count in this process"):
        _tune.keep([entry(m=512)])
    assert _cache.in_force() == [entry()]
    assert chosen(KEY._replace(m=512)) == before and chosen() == (CONFIG, "tuned on this card")
    assert _cache.read(path) == ([entry(m=512)], [])  # for later processes


def test_off_writes_nothing(monkeypatch):
    monkeypatch.setenv("HOPGEMM_CACHE", "off")
    _cache.store([entry()])


def test_sixteen_writers_lose_nothing(path):
    """And a reader meanwhile never sees half a file."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_cache import entry; from hopgemm import _cache\n"
        "for i in range(4): _cache.store([entry(m=1 + 4 * int(sys.argv[2]) + i)])"
    )
    here = os.path.dirname(__file__)
    writers = [subprocess.Popen([sys.executable, "-c", code, here, str(i)]) for i in range(16)]
    problems = []
    while any(writer.poll() is None for writer in writers):
        problems += _cache.read(path)[1]
    assert [writer.wait() for writer in writers] == [0] * 16
    assert problems == []
    assert sorted(e.key.m for e in _cache.read(path)[0]) == list(range(1, 65))


def test_a_lock_that_is_never_given_back_is_an_error(path, monkeypatch):
    monkeypatch.setattr(_cache, "_LOCK_WAIT_S", 0.05)
    path.parent.mkdir()
    with _cache._locked(path), pytest.raises(TimeoutError, match="another process"):
        _cache.store([entry()])
    _cache.store([entry()])  # free again


def test_replacing_the_table_under_calls(path):
    """Plans from other threads see one table or the other, never something else."""
    plain, stop, seen = chosen(), threading.Event(), set()

    def ask():
        while not stop.is_set():
            seen.add(chosen())

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        _core.set_tuned([(GPU, tuple(KEY), CONFIG)])
        _core.set_tuned([])
    stop.set()
    for thread in threads:
        thread.join()
    assert seen <= {plain, (CONFIG, "tuned on this card")}
