"""The wire protocol between the audit and an adapter in a process of its own.

A message is one frame, over a pipe that carries nothing else (never stdin or stdout):

    magic "SPA1" | header length, uint32 | payload length, uint64 | header, JSON | payload, raw

All integers are little-endian. The header is `{"body": BODY, "arrays": [[DTYPE, SHAPE, STORED, READONLY], ...]}`; the payload
has the arrays in this order, each at a multiple of 64 bytes. In a body null, booleans, numbers and strings are JSON (NaN
and infinities as Python's json writes them), lists are JSON lists, and everything else is an object with a tag `t`:

    {"t": "array", "i": I}                  array number I of the frame
    {"t": "scalar", "i": I}                 its only element, as a NumPy scalar
    {"t": "list", "i": I}                   a list (of lists) of Python numbers
    {"t": "rows", "i": I}                   the list of the arrays along its first axis
    {"t": "pick", "i": I, "of": [...]}      a list whose items repeat: items of `of` at these places
    {"t": "tuple", "of": LIST}
    {"t": "map", "of": [[key, value], ...]}
    {"t": "Settings" | "Model" | "Round" | "Law" | "Generation" | "Mode", "of": {name: value, ...}}
    {"t": "other", "type": NAME, "text": SHOWN}     in answers alone: a value without a form of its own, see `NonAnswer`

STORED is the shape in the payload: an axis of stride 0 is stored with length 1 and is rebuilt as a broadcast view, so the
cost of a view is that of its distinct numbers. DTYPE is one of `DTYPES`, in the machine's byte order: both ends are on
one machine. Nothing in a frame is ever executed or imported by name, and every size is checked before memory is taken.

Requests have the bodies

    {"kind": "load", "source": S, "options": {...}, "rule": R, "tolerance": T}
    {"kind": "build", "source": S, "options": {...}, "rule": R, "tolerance": T, "mode": M}
    {"kind": "call", "method": NAME, "arguments": [...], "keywords": {...}}

and each has one answer:

    {"kind": "loaded", "name": N, "summary": S, "engine": {...}, "modes": (...)}
    {"kind": "ready", "attributes": {...}, "methods": [...], "versions": {...}}
    {"kind": "refused", "error": NAME, "message": M}           it cannot be loaded or built; NAME is in `auditor.errors`
    {"kind": "answer", "value": V}
    {"kind": "raised", "summary": S, "traceback": T}           the adapter raised; the worker lives on
    {"kind": "garbled", "summary": S}                          the answer is too large or too deep for a frame

Imports the standard library and NumPy only: both ends read this file.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from auditor.adapter import Generation, Law, Mode, Model, Round, Settings

Array = npt.NDArray[Any]
Read = Callable[[memoryview], int]
"""Reads what is there into a view, at least one byte, and returns how many; it raises where there will be none."""

PREFIX = struct.Struct("<4sIQ")
MAGIC = b"SPA1"
FIRST_READ = 2**14
"""Bytes; a frame that fits is read in one go. There is never more than one frame under way."""
ALIGNMENT = 64
MAX_HEADER = 2**28
MAX_PAYLOAD = 2**31
MAX_DEPTH = 24
BULK = 16
"""Lists from this length on are sent as arrays where their items allow it."""

_NAMES = ["bool", "float16", "float32", "float64"] + [
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
]
DTYPES = {np.dtype(name): name for name in _NAMES}
ITEM_SIZES = {name: np.dtype(name).itemsize for name in _NAMES}
RECORDS = {kind.__name__: kind for kind in (Settings, Model, Round, Law, Generation, Mode)}


class Unsendable(TypeError):
    """The value has no form on the wire; the message describes it in one line."""


class Malformed(Exception):
    """The bytes are not a frame of this protocol."""


class NonAnswer:
    """Stands for a value of the other side that has no form on the wire: an array of objects, a generator, a word.

    Its class has the name of that value's type, and NumPy refuses it with the value's description, so that a check of
    answers says what it would have said of the value itself.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def __array__(self, dtype: object = None, copy: object = None) -> Array:
        raise TypeError(self.text)


def describe(value: object) -> str:
    """One line that shows a value whose own `repr` may be long, or may raise."""
    try:
        text = " ".join(repr(value).split())
    except Exception as error:
        text = f"(its repr raises {type(error).__name__})"
    return f"{type(value).__name__} {text if len(text) <= 200 else text[:197] + '...'}"


def pack(body: Mapping[str, Any], lenient: bool = False) -> list[memoryview]:
    """The frame of a message, as pieces to be written in order.

    Raises `Unsendable` where a value has no form on the wire; with `lenient` such a value arrives as a `NonAnswer`, and only
    what is too large or too deep is refused.
    """
    packer = _Packer(lenient)
    encoded = {name: packer.encode(value, 0) for name, value in body.items()}
    header = json.dumps({"body": encoded, "arrays": packer.table}, separators=(",", ":")).encode()
    if len(header) > MAX_HEADER:
        raise Unsendable(f"a structure of {len(header) / 1e6:.0f} MB, where {MAX_HEADER / 1e6:.0f} MB is the limit")
    pieces: list[Any] = [PREFIX.pack(MAGIC, len(header), packer.payload), header]
    for buffer in packer.buffers:
        pieces += [buffer.reshape(-1).view(np.uint8).data, bytes(_aligned(buffer.nbytes) - buffer.nbytes)]
    if packer.payload <= FIRST_READ:
        return [memoryview(b"".join(pieces))]
    return [memoryview(piece) for piece in pieces if len(piece)]


def receive(read: Read) -> dict[str, Any]:
    """Read one frame and return its body. Raises `Malformed`, and whatever `read` raises."""
    first = np.empty(FIRST_READ, dtype=np.uint8).data
    had = 0
    while had < PREFIX.size:
        had += read(first[had:])
    magic, length, payload = PREFIX.unpack_from(first)
    if magic != MAGIC or length > MAX_HEADER or payload > MAX_PAYLOAD:
        raise Malformed(f"a frame cannot begin with {bytes(first[: PREFIX.size])!r}")
    text, ahead = _take(first[PREFIX.size : had], length, read)
    try:
        header = json.loads(text.tobytes())
        encoded, places, needed = header["body"], [], 0
        for name, shape, stored, readonly in header["arrays"]:
            places.append((needed, name, shape, stored, readonly))
            needed += _aligned(_size(name, shape, stored))
        if needed != payload:
            raise ValueError(f"its arrays have {needed} bytes, its payload {payload}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Malformed(f"not a header: {error}") from error
    try:
        block, ahead = _take(ahead, payload, read)
    except MemoryError as error:
        raise Malformed(f"{payload / 1e6:.0f} MB, which is more memory than there is") from error
    if ahead.nbytes:
        raise Malformed(f"{ahead.nbytes} bytes behind its end")
    try:
        arrays = [_array(block, *place) for place in places]
        return {name: _decode(value, arrays) for name, value in encoded.items()}
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise Malformed(f"not a body: {error}") from error


def write_some(descriptor: int, pieces: list[memoryview]) -> None:
    """Write what the pipe takes now and drop it from `pieces`, which ends empty when the frame is out."""
    written = os.writev(descriptor, pieces[:512])
    while written:
        taken = min(written, pieces[0].nbytes)
        written -= taken
        if taken == pieces[0].nbytes:
            del pieces[0]
        else:
            pieces[0] = pieces[0][taken:]


class _Packer:
    """Turns values into JSON and buffers."""

    def __init__(self, lenient: bool) -> None:
        self.lenient = lenient
        self.payload = 0
        self.buffers: list[Array] = []
        self.table: list[tuple[str, tuple[int, ...], tuple[int, ...], bool]] = []

    def encode(self, value: Any, depth: int) -> Any:
        if value is None or isinstance(value, (bool, str)) or type(value) in (int, float):
            return value
        if depth > MAX_DEPTH:
            raise Unsendable(f"nested deeper than {MAX_DEPTH}: {describe(value)}")
        if isinstance(value, np.ndarray):
            return self._array(np.asarray(value)) if _sendable(value) else self._other(value)
        if isinstance(value, np.generic) and _sendable(value):
            return self._array(np.asarray(value), "scalar")
        if isinstance(value, list):
            return self._list(value, depth)
        if isinstance(value, tuple):
            return {"t": "tuple", "of": self._list(list(value), depth)}
        for name, kind in RECORDS.items():
            if isinstance(value, kind):
                fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(kind)}
                return {"t": name, "of": {key: self.encode(item, depth + 1) for key, item in fields.items()}}
        if isinstance(value, Mapping):
            return {"t": "map", "of": [[self.encode(part, depth + 1) for part in pair] for pair in value.items()]}
        # Anything else that NumPy takes, such as a tensor: what an audit in the same process would see.
        try:
            array = np.asarray(value)
        except Exception as error:
            return self._other(value, f" ({type(error).__name__}: {error})")
        return self._array(array) if _sendable(array) else self._other(value)

    def _other(self, value: object, why: str = "") -> dict[str, Any]:
        text = describe(value) + why
        if not self.lenient:
            raise Unsendable(text)
        return {"t": "other", "type": type(value).__name__, "text": text}

    def _array(self, array: Array, tag: str = "array", **more: Any) -> dict[str, Any]:
        shape, once = array.shape, array
        if 0 in array.strides and array.size > 1:  # an axis of stride 0 repeats its first element
            sides = zip(array.strides, shape, strict=True)
            once = array[tuple(slice(0, 1) if step == 0 else slice(None) for step, _ in sides)]
        self.payload += _aligned(once.nbytes)
        if self.payload > MAX_PAYLOAD:  # seen before it is copied
            raise Unsendable(f"{self.payload / 1e6:.0f} MB of numbers, where {MAX_PAYLOAD / 1e6:.0f} MB is the limit")
        native = array.dtype.newbyteorder("=")
        self.table.append((DTYPES[native], shape, once.shape, not array.flags.writeable))
        self.buffers.append(np.ascontiguousarray(once, dtype=native))
        return {"t": tag, "i": len(self.table) - 1, **more}

    def _list(self, items: list[Any], depth: int) -> Any:
        packed = self._bulk(items, depth) if len(items) >= BULK else None
        return [self.encode(item, depth + 1) for item in items] if packed is None else packed

    def _bulk(self, items: list[Any], depth: int) -> Any:
        """The short form of a long list, or None where it has none."""
        kinds = set(map(type, items))
        if len(kinds) != 1:
            return None
        (kind,) = kinds
        if kind in (bool, int, float, list):
            try:
                array = np.asarray(items)
            except Exception:  # ragged, or no numbers
                return None
            # NumPy makes floats of integers that are too large for int64.
            fits = array.dtype in (np.bool_, np.int64, np.float64) and (kind is not int or array.dtype == np.int64)
            return self._array(array, "list") if fits else None
        if kind in RECORDS.values():
            unique = {id(item): item for item in items}
            if len(unique) > len(items) // 2:
                return None
            places = {key: place for place, key in enumerate(unique)}
            index = np.fromiter((places[id(item)] for item in items), dtype=np.int64, count=len(items))
            firsts = [self.encode(item, depth + 1) for item in unique.values()]
            return self._array(index, "pick", of=firsts)
        if kind is np.ndarray or issubclass(kind, np.generic):
            alike = len({(item.dtype, item.shape) for item in items}) == 1 and _sendable(items[0])
            return self._array(np.stack(items), "rows") if alike else None
        return None


def _sendable(value: Array | np.generic) -> bool:
    return value.dtype.newbyteorder("=") in DTYPES


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _take(ahead: memoryview, size: int, read: Read) -> tuple[Array, memoryview]:
    """`size` bytes, of which some may have been read already, and what of these is left."""
    block = np.empty(size, dtype=np.uint8)
    view = block.data
    known = min(size, ahead.nbytes)
    view[:known] = ahead[:known]
    while known < size:
        known += read(view[known:])
    return block, ahead[known:]


def _size(name: Any, shape: Any, stored: Any) -> int:
    """Bytes of an array in the payload; raises `ValueError` where the description is not one of an array."""
    if name not in ITEM_SIZES or len(shape) != len(stored):
        raise ValueError(f"no array: {name!r:.50} {shape!r:.50} {stored!r:.50}")
    for full, kept in zip(shape, stored, strict=True):
        if type(full) is not int or type(kept) is not int or full < 0 or (kept not in (1, full)):
            raise ValueError(f"no shape of an array: {shape!r:.50} {stored!r:.50}")
    return ITEM_SIZES[name] * int(math.prod(stored))


def _array(block: Array, start: int, name: str, shape: list[int], stored: list[int], readonly: bool) -> Array:
    strides, step = [0] * len(shape), ITEM_SIZES[name]
    for axis in range(len(shape) - 1, -1, -1):
        strides[axis] = step if stored[axis] == shape[axis] else 0
        step *= stored[axis]
    array: Array = np.ndarray(shape, name, block, start, strides)  # raises where it would leave the block
    array.flags.writeable = not readonly and shape == stored
    return array


def _decode(node: Any, arrays: Sequence[Array]) -> Any:
    if isinstance(node, list):
        return [_decode(item, arrays) for item in node]
    if not isinstance(node, dict):
        return node
    tag = node["t"]
    if tag == "array":
        return arrays[node["i"]]
    if tag == "scalar":
        return arrays[node["i"]][()]
    if tag == "list":
        return arrays[node["i"]].tolist()
    if tag == "rows":
        return list(arrays[node["i"]])
    if tag == "pick":
        unique = _decode(node["of"], arrays)
        return [unique[place] for place in arrays[node["i"]]]
    if tag == "tuple":
        return tuple(_decode(node["of"], arrays))
    if tag == "map":
        return dict(_decode(pair, arrays) for pair in node["of"])
    if tag == "other":
        return type(str(node["type"]), (NonAnswer,), {})(str(node["text"]))
    if tag in RECORDS:
        return RECORDS[tag](**{name: _decode(value, arrays) for name, value in node["of"].items()})
    raise ValueError(f"unknown tag {tag!r}")
