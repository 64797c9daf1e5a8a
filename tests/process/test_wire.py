"""Frames: whatever goes in comes out, views stay views, and bytes that are no frame are refused."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from auditor.adapter import Generation, Law, Mode, Model, Round, Settings
from auditor.process import wire


def reader(data: bytes, most: int = 2**30) -> Callable[[memoryview], int]:
    """Reads `data`, at most so many bytes at a time."""
    place = 0

    def read(view: memoryview) -> int:
        nonlocal place
        part = data[place : place + min(view.nbytes, most)]
        if not part:
            raise EOFError
        view[: len(part)] = part
        place += len(part)
        return len(part)

    return read


def through(value: Any, *, most: int = 2**30, lenient: bool = False) -> Any:
    return wire.receive(reader(b"".join(wire.pack({"value": value}, lenient=lenient)), most))["value"]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, (np.ndarray, np.generic)):
        return (
            type(one) is type(other)
            and one.dtype == other.dtype
            and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
        )
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return isinstance(other, dict) and list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, float) and math.isnan(one):
        return isinstance(other, float) and math.isnan(other)
    return type(one) is type(other) and bool(one == other)


arrays = hnp.arrays(
    st.sampled_from([np.dtype(name) for name in wire.ITEM_SIZES]),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=9)
    | arrays.map(lambda array: array.ravel()[0] if array.size else np.float32(1))
)
values = st.recursive(
    scalars | arrays,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(values, st.sampled_from([1, 7, 64, 2**30]))
def test_whatever_goes_in_comes_out(value: Any, most: int) -> None:
    assert same(value, through(value, most=most))


@given(st.integers(16, 40).flatmap(lambda n: st.lists(st.integers(-(2**70), 2**70), min_size=n, max_size=n)))
def test_long_lists_of_integers(value: list[int]) -> None:
    assert same(value, through(value))


@pytest.mark.parametrize(
    "value",
    [
        [True, False] * 20,
        [0.5, float("inf")] * 20,
        [1, 2.5] * 20,
        [[1, 2], [3, 4]] * 20,
        [[1], [2, 3]] * 20,
        [np.int64(3)] * 20,
        [np.arange(3), np.arange(3) + 1] * 20,
        [np.arange(3), np.arange(4)] * 20,
        ["word"] * 20,
        [None] * 20,
        tuple(range(20)),
    ],
    ids=lambda value: repr(value[:2]),
)
def test_long_lists_keep_their_types(value: Any) -> None:
    assert same(value, through(value))


def test_records() -> None:
    settings = Settings(temperature=0.5, bad_words=((1, 2), (3,)), eos=4)
    assert through(settings) == settings
    assert through(Mode("one", summary="s")) == Mode("one", summary="s")
    model = through(Model("k", 3, "/t", "/d", {"table": np.eye(3)}))
    assert (model.key, model.vocab, model.target) == ("k", 3, "/t")
    assert np.array_equal(model.arrays["table"], np.eye(3))
    law = through(Law(np.ones((2, 1)), np.ones((2, 1, 3)), np.ones((2, 3))))
    assert isinstance(law, Law)
    assert law.residual.shape == (2, 1, 3)
    generations = through([Generation(np.arange(2), finish="stop"), Generation([1, 2])])
    assert generations[0].finish == "stop"
    assert generations[1].tokens == [1, 2]
    assert through(Round(np.zeros((1, 2), int), np.zeros((1, 1), int))).draft_probs is None


def test_a_record_that_repeats_is_sent_once() -> None:
    few = [Settings(temperature=0.5), Settings()]
    many = few * 30_000
    assert sum(piece.nbytes for piece in wire.pack({"value": many})) < 500_000
    assert through(many) == many


@given(arrays, st.lists(st.integers(0, 5), max_size=2))
def test_views_stay_views(array: np.ndarray, more: list[int]) -> None:
    view = np.broadcast_to(array, (*more, *array.shape))
    size = sum(piece.nbytes for piece in wire.pack({"value": view}))
    assert size < 300 + array.nbytes + wire.ALIGNMENT
    back = through(view)
    assert same(view, back)
    assert not back.flags.writeable
    assert all(step == 0 for step, n in zip(back.strides, more, strict=False) if n > 1 and view.size)


def test_a_view_of_20_gigabytes_costs_what_its_row_costs() -> None:
    row = np.linspace(0, 1, 131_072)
    view = np.broadcast_to(row, (4_000, 5, row.size))
    assert view.nbytes > 20e9
    assert sum(piece.nbytes for piece in wire.pack({"value": view})) < 1.1 * row.nbytes
    back = through(view)
    assert back.shape == view.shape
    assert back.strides == (0, 0, 8)
    assert np.array_equal(back[-1, -1], row)


def test_views_in_the_middle_and_in_other_orders() -> None:
    base = np.arange(12.0).reshape(3, 1, 4)
    for view in (
        np.broadcast_to(base, (3, 5, 4)),
        base[::-1, :, ::2],
        base.T,
        np.asfortranarray(base),
        base.astype(">f8"),
    ):
        back = through(view)
        assert np.array_equal(back, view)
        assert back.dtype.isnative
    assert through(np.arange(3)).flags.writeable
    assert through(base).flags.aligned
    frozen = np.arange(3)
    frozen.flags.writeable = False
    assert not through(frozen).flags.writeable


class Strange:
    def __repr__(self) -> str:
        return "a strange thing"


class Tensor:
    """What NumPy takes, as a tensor of an engine is."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.arange(3)


class Refuses:
    def __repr__(self) -> str:
        raise RuntimeError

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise ValueError("on another device")


@pytest.mark.parametrize(
    "value", [Strange(), np.array([Strange()]), np.array(["a"]), np.zeros(2, complex), b"bytes", {1, 2}, Refuses()]
)
def test_what_has_no_form_is_refused_in_requests_and_described_in_answers(value: Any) -> None:
    with pytest.raises(wire.Unsendable):
        through(value)
    answer = through((value, 1), lenient=True)
    assert answer[1] == 1
    assert isinstance(answer[0], wire.NonAnswer)
    assert type(answer[0]).__name__ == type(value).__name__
    with pytest.raises(TypeError, match=type(value).__name__):
        np.asarray(answer[0])


def test_what_numpy_takes_arrives_as_an_array() -> None:
    assert np.array_equal(through(Tensor()), np.arange(3))
    assert "on another device" in repr(through(Refuses(), lenient=True))


def test_too_deep_and_too_large() -> None:
    nested: list[Any] = []
    nested.append(nested)
    with pytest.raises(wire.Unsendable, match="nested deeper"):
        through(nested, lenient=True)
    overlapping = np.lib.stride_tricks.as_strided(np.zeros(2**17), (2**16, 2**16), (8, 8))
    with pytest.raises(wire.Unsendable, match="34360 MB"):
        through(overlapping, lenient=True)


GOOD = b"".join(wire.pack({"kind": "answer", "value": (np.arange(3), [np.zeros((2, 2))], {"a": Mode("m")}, "word")}))


def refuse(data: bytes) -> None:
    with pytest.raises((wire.Malformed, EOFError)):
        wire.receive(reader(data))


@given(st.binary(max_size=200))
def test_noise_is_refused(data: bytes) -> None:
    refuse(data)
    refuse(wire.MAGIC + data)


@given(st.integers(0, len(GOOD) - 1))
def test_a_cut_frame_is_refused(length: int) -> None:
    refuse(GOOD[:length])


def test_a_frame_with_more_behind_it_is_refused() -> None:
    refuse(GOOD + b"x")


@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_a_damaged_frame_is_read_or_refused_but_nothing_else(place: int, change: int) -> None:
    damaged = bytearray(GOOD)
    damaged[place] ^= change
    with contextlib.suppress(wire.Malformed, EOFError):
        wire.receive(reader(bytes(damaged)))


def frame(header: bytes, payload: bytes = b"", claimed: int | None = None) -> bytes:
    return wire.PREFIX.pack(wire.MAGIC, len(header), len(payload) if claimed is None else claimed) + header + payload


@pytest.mark.parametrize(
    "data",
    [
        frame(b'{"body":{},"arrays":[]}', claimed=2**60),
        frame(b'{"body":{},"arrays":[]}', bytes(64)),
        frame(b'{"body":{},"arrays":[["float64",[2],[2],false]]}', claimed=2**30),
        frame(b'{"body":{},"arrays":[["float64",[-1],[-1],false]]}'),
        frame(b'{"body":{},"arrays":[["float64",[2.0],[2],false]]}', bytes(64)),
        frame(b'{"body":{},"arrays":[["float64",[4],[2],false]]}', bytes(64)),
        frame(b'{"body":{},"arrays":[["object",[1],[1],false]]}', bytes(64)),
        frame(
            b'{"body":{"v":{"t":"array","i":0}},"arrays":[["float64",[9223372036854775807,9],[1,1],false]]}', bytes(64)
        ),
        frame(b'{"body":{"v":{"t":"array","i":7}},"arrays":[]}'),
        frame(b'{"body":{"v":{"t":"Settings","of":{"no_such":1}}},"arrays":[]}'),
        frame(b'{"body":{"v":{"t":"os.system","of":{}}},"arrays":[]}'),
        frame(b'{"body":{"v":' + b"[" * 100_000 + b"]" * 100_000 + b'},"arrays":[]}'),
        frame(b'{"body":[],"arrays":[]}'),
        frame(b"[]"),
        frame(b"\xff\xfe"),
    ],
)
def test_frames_that_lie_are_refused_before_memory_is_taken(data: bytes) -> None:
    with pytest.raises(wire.Malformed):
        wire.receive(reader(data))
