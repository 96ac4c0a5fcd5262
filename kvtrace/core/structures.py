"""What compiled code works on: structures of records, tables and numbers, passed as one address.

A class names the fields once, for Python and for compiled code. In Python an instance gives and takes NumPy arrays;
in compiled code the same names read and write them in place:

    TIER = np.dtype([("limit", "i8"), ("used", "i8")])

    class World(Structure):
        seed = number()
        clock = record(np.dtype([("now_ns", "i8")]))
        tiers = table(TIER)

    @inner
    def has_room(world: World, t: int, size: int) -> bool:
        return world.tiers[t].used + size <= world.tiers[t].limit

    @njit
    def count(world: World, size: int) -> int:
        return sum([has_room(world, t, size) for t in range(len(world.tiers))])

To pass thirty arrays one by one takes longer to compile, and to call, than all else. Tables and numbers cannot be
replaced while compiled code runs; what stands in records and tables can change. An index is not checked.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.imputils import lower_builtin, lower_getattr_generic
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, infer_getattr, infer_global, signature
from numba.extending import NativeValue, register_model, typeof_impl, unbox
from numba.np.numpy_support import from_dtype

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

_PLACE = np.dtype([("address", "i8"), ("length", "i8")])


class _Field:
    """One field: where it stands in the structure's memory, `dtype`, and what compiled code gets."""

    def __init__(self, stored: np.dtype[Any], dtype: Any = None) -> None:
        self.stored, self.dtype = stored, dtype

    def __set_name__(self, _owner: type, name: str) -> None:
        self.name = name

    def __get__(self, owner: Structure | None, _type: type) -> Any:
        return self if owner is None else self.value(owner)

    def value(self, owner: Structure) -> Any:
        """Return what Python sees."""
        return owner.memory[self.name]

    def __set__(self, owner: Structure, value: Any) -> None:
        owner.memory[self.name] = value


class _Number(_Field):
    def value(self, owner: Structure) -> int:
        return int(owner.memory[self.name])


class _Record(_Field):
    pass


class _Table(_Field):
    def value(self, owner: Structure) -> Any:
        return owner.arrays[self.name]

    def __set__(self, owner: Structure, value: Any) -> None:
        array = np.ascontiguousarray(value, self.dtype)
        owner.arrays[self.name] = array
        owner.memory[self.name] = (array.ctypes.data, array.size)


class _Part(_Field):
    def value(self, owner: Structure) -> Any:
        return owner.arrays[self.name]

    def __set__(self, owner: Structure, value: Any) -> None:
        raise AttributeError(f"{self.name} is a part: set its fields")


def number() -> Any:
    """Return a field that is an integer, constant while compiled code runs."""
    return _Number(np.dtype("i8"))


def record(dtype: np.dtype[Any]) -> Any:
    """Return a field that is one record of `dtype`."""
    return _Record(dtype)


def table(dtype: DTypeLike) -> Any:
    """Return a field that is an array of `dtype`, records or numbers; a matrix is seen row after row."""
    return _Table(_PLACE, np.dtype(dtype))


def part(kind: type[Structure]) -> Any:
    """Return a field that is a structure within this one."""
    return _Part(kind.layout, kind)


class Structure:
    """Base of all structures; see above. A field that is not given is 0, or an empty table."""

    layout: ClassVar[np.dtype[Any]]
    fields: ClassVar[dict[str, _Field]]
    kind: ClassVar[Any]

    def __init_subclass__(cls) -> None:
        cls.fields = {name: field for name, field in vars(cls).items() if isinstance(field, _Field)}
        cls.layout = np.dtype([(name, field.stored) for name, field in cls.fields.items()], align=True)
        cls.kind = _StructureType(cls)

    def __init__(self, **values: Any) -> None:
        self.hold(np.zeros(1, self.layout)[0])
        for name, value in values.items():
            if name not in self.fields:
                raise TypeError(f"{type(self).__name__} has no field {name!r}")
            setattr(self, name, value)

    def hold(self, memory: Any) -> Self:
        """Take `memory` as one's own, with every table empty."""
        self.memory, self.arrays = memory, {}
        self.address = memory.__array_interface__["data"][0]
        for name, field in self.fields.items():
            if isinstance(field, _Part):
                self.arrays[name] = field.dtype.__new__(field.dtype).hold(memory[name])
            elif isinstance(field, _Table):
                setattr(self, name, np.zeros(0, field.dtype))
        return self


class _StructureType(types.Type):
    def __init__(self, cls: type[Structure]) -> None:
        self.cls = cls
        super().__init__(name=f"{cls.__module__}.{cls.__qualname__}")


class _TableType(types.Type):
    def __init__(self, item: Any) -> None:
        self.item = item
        super().__init__(name=f"table({item})")

    @property
    def mangling_args(self) -> tuple[str, tuple[Any, ...]]:
        return "table", (self.item,)


@register_model(_StructureType)
class _StructureModel(models.OpaqueModel):
    """An address."""


@register_model(_TableType)
class _TableModel(models.StructModel):
    """An address and a length."""

    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, [("address", types.voidptr), ("length", types.intp)])


@typeof_impl.register(Structure)
def _typeof(value: Structure, _context: Any) -> Any:
    return value.kind


@unbox(_StructureType)
def _unbox(_kind: Any, value: Any, c: Any) -> Any:
    number = c.pyapi.object_getattr_string(value, "address")
    address = c.builder.inttoptr(c.pyapi.long_as_longlong(number), cgutils.voidptr_t)
    c.pyapi.decref(number)
    return NativeValue(address, is_error=cgutils.is_not_null(c.builder, c.pyapi.err_occurred()))


def _kind_of(field: _Field) -> Any:
    if isinstance(field, _Number):
        return types.int64
    if isinstance(field, _Part):
        return field.dtype.kind
    return from_dtype(field.stored) if isinstance(field, _Record) else _TableType(from_dtype(field.dtype))


@infer_getattr
class _StructureFields(AttributeTemplate):
    key = _StructureType

    def generic_resolve(self, kind: Any, name: str) -> Any:
        field = kind.cls.fields.get(name)
        return None if field is None else _kind_of(field)


@lower_getattr_generic(_StructureType)
def _field(context: Any, builder: Any, kind: Any, value: Any, name: str) -> Any:
    field, offset = kind.cls.fields[name], kind.cls.layout.fields[name][1]
    if isinstance(field, _Number):
        return _constant(builder, value, offset, ir.IntType(64))
    if isinstance(field, _Table):
        made = cgutils.create_struct_proxy(_kind_of(field))(context, builder)
        made.address = _constant(builder, value, offset, cgutils.voidptr_t)
        made.length = _constant(builder, value, offset + 8, ir.IntType(64))
        return made._getvalue()
    at = cgutils.pointer_add(builder, value, offset)
    return builder.bitcast(at, context.get_value_type(_kind_of(field)))


def _constant(builder: Any, address: Any, offset: int, kind: Any) -> Any:
    """Load what cannot change while compiled code runs, so that LLVM may keep it in a register."""
    at = builder.bitcast(cgutils.pointer_add(builder, address, offset), kind.as_pointer())
    loaded = builder.load(at)
    loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
    return loaded


@infer_global(operator.getitem)
class _GetItem(AbstractTemplate):
    def generic(self, args: Any, _kws: Any) -> Any:
        kind, index = args
        if isinstance(kind, _TableType) and isinstance(index, types.Integer):
            return signature(kind.item, kind, types.intp)
        return None


@infer_global(operator.setitem)
class _SetItem(AbstractTemplate):
    def generic(self, args: Any, _kws: Any) -> Any:
        kind, index, _value = args
        if isinstance(kind, _TableType) and isinstance(index, types.Integer):
            return signature(types.none, kind, types.intp, kind.item)
        return None


@infer_global(len)
class _Length(AbstractTemplate):
    def generic(self, args: Any, _kws: Any) -> Any:
        return signature(types.intp, args[0]) if isinstance(args[0], _TableType) else None


def _item(context: Any, builder: Any, kind: Any, value: Any, index: Any) -> Any:
    made = cgutils.create_struct_proxy(kind)(context, builder, value)
    item = context.get_data_type(kind.item)
    base = builder.bitcast(made.address, item.as_pointer())
    return builder.gep(base, [index], inbounds=True)


@lower_builtin(operator.getitem, _TableType, types.intp)
def _get(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    at = _item(context, builder, sig.args[0], *args)
    if isinstance(sig.return_type, types.Record):
        return at
    return context.unpack_value(builder, sig.return_type, at)


@lower_builtin(operator.setitem, _TableType, types.intp, types.Any)
def _set(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    at = _item(context, builder, sig.args[0], *args[:2])
    context.pack_value(builder, sig.args[0].item, context.cast(builder, args[2], sig.args[2], sig.args[0].item), at)
    return context.get_dummy_value()


@lower_builtin(len, _TableType)
def _len(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return cgutils.create_struct_proxy(sig.args[0])(context, builder, args[0]).length
