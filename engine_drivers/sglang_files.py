"""SGLang's own HiCacheFile and its evictor over files, without the rest of SGLang, which wants a
GPU.

Its two modules are loaded from the installed package; what they import of the rest and do not use
is a stub. The pool in host memory that stands before it in SGLang is no part of this: every
prompt's pages are looked up in the files.
"""

import importlib.util
import inspect
import sys
import types
from pathlib import Path
from typing import Any

from engine_drivers.recorder import Contents, Notebook, Operation, page_keys, version_of

PAGE_TOKENS = 64
PREFETCH_TOKENS = 256
"""SGLang reads from storage only if it finds so many tokens there."""
_STORAGE = "sglang.srt.mem_cache.storage"
_STUBS = ("sglang", "sglang.srt", "sglang.srt.mem_cache", _STORAGE, f"{_STORAGE}.file")


def drive(recorder: Notebook) -> None:
    """Serve the requests one after another, page by page as HiCacheFile does."""
    import torch

    asked = recorder.settings
    length = PAGE_TOKENS * asked.token_bytes
    contents, into = Contents(length), torch.zeros(length, dtype=torch.uint8)
    files = _files(recorder)
    recorder.facts(engine="SGLang", version=version_of("sglang"), chunk_tokens=PAGE_TOKENS)
    recorder.watch()
    for prompt in recorder.prompts():
        keys = page_keys(prompt, PAGE_TOKENS, "{:.40}{}")
        found = next((n for n, key in enumerate(keys) if not files.exists(key)), len(keys))
        wanted = found if found * PAGE_TOKENS >= PREFETCH_TOKENS else 0
        recorder.hit(wanted * PAGE_TOKENS)
        for key in keys[:wanted]:
            path = f"{files.file_path}/{files._get_suffixed_key(key)}.bin"  # noqa: SLF001 - its name for the file
            with recorder.timed("read", path, length):
                files.get(key, into)
        for key in keys[found:]:
            files.set(key, torch.frombuffer(contents.cut(length), dtype=torch.uint8))


def _files(recorder: Notebook) -> Any:
    """Return a HiCacheFile whose writes and removals are recorded."""
    asked = recorder.settings
    storage = _storage_module(asked.directory)
    known: dict[str, Any] = {
        "tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "attn_cp_rank": 0, "attn_cp_size": 1,
        "is_mla_model": False, "enable_storage_metrics": False, "is_page_first_layout": False, "model_name": "model",
        "extra_config": {"max_size": asked.disk_bytes} if asked.disk_bytes else {},
        "tp_lcm_size": None, "should_split_heads": False,
    }  # fmt: skip
    names = inspect.signature(storage.HiCacheStorageConfig).parameters
    files = storage.HiCacheFile(
        storage.HiCacheStorageConfig(
            **{name: value for name, value in known.items() if name in names}
        )
    )
    _time_writes(recorder, files)
    recorder.time_removals()
    return files


def _time_writes(recorder: Notebook, files: Any) -> None:
    """Record a write from when the evictor has made room to when it hears that the file is there."""
    evictor = files._evictor  # noqa: SLF001 - writes begin and end there
    reserve, commit, abort = evictor.reserve, evictor.commit, evictor.abort
    open_writes: dict[str, Operation] = {}

    def begin(name: str, length: int, **more: Any) -> bool:
        is_admitted = bool(reserve(name, length, **more))
        if is_admitted:
            open_writes[name] = recorder.begin("write", f"{files.file_path}/{name}.bin", length)
        return is_admitted

    def end(name: str) -> None:
        recorder.end_of(open_writes.pop(name), None)
        commit(name)

    def fail(name: str) -> None:
        recorder.end_of(open_writes.pop(name), sys.exc_info()[1] or OSError("not written"))
        abort(name)

    evictor.reserve, evictor.commit, evictor.abort = begin, end, fail


def _storage_module(directory: str) -> Any:
    found = importlib.util.find_spec("sglang")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'sglang'", name="sglang")
    cache = Path(found.submodule_search_locations[0]) / "srt" / "mem_cache"
    for name in _STUBS:
        stub = types.ModuleType(name)
        stub.__path__ = []
        sys.modules[name] = stub
    environ: Any = types.ModuleType("sglang.srt.environ")
    environ.envs = _Environment(directory)
    sys.modules["sglang.srt.environ"] = environ
    _load(f"{_STORAGE}.file.lru_file_evictor", cache / "storage" / "file" / "lru_file_evictor.py")
    return _load("sglang.srt.mem_cache.hicache_storage", cache / "hicache_storage.py")


class _Variable:
    """A variable of SGLang's environment."""

    def __init__(self, value: object) -> None:
        self._value = value

    def get(self) -> object:
        return self._value


class _Environment:
    """SGLang's environment, in which only the directory is set."""

    def __init__(self, directory: str) -> None:
        self._known = {
            "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": directory,
            "SGLANG_HICACHE_FILE_BACKEND_METADATA_TTL": 5.0,
        }

    def __getattr__(self, name: str) -> _Variable:
        return _Variable(self._known.get(name))


class _Unused(types.ModuleType):
    """A module that is imported and not used: every name in it is a class."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def _load(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    while True:
        try:
            spec.loader.exec_module(module)
        except ModuleNotFoundError as absent:
            if absent.name in (None, "torch", "numpy"):
                raise
            sys.modules[str(absent.name)] = _Unused(str(absent.name))
        else:
            return module
