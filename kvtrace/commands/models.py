"""Print the models, and how many bytes of KV cache one of them makes."""

from __future__ import annotations

from typing import Annotated

import typer

from kvtrace.commands.options import AsJson, TensorParallel
from kvtrace.core.app import emit_json


def models(
    model: Annotated[str | None, typer.Argument(help="A model, or a path to a config.json; without it, all.")] = None,
    tensor_parallel: TensorParallel = 1,
    kv_dtype: Annotated[
        str | None, typer.Option(help="Dtype of the cache: fp32, fp16, bf16, fp8, int8, fp8_ds_mla.")
    ] = None,
    tokens: Annotated[int, typer.Option(help="Tokens of the prefix to store and read.")] = 8192,
    chunk: Annotated[int, typer.Option(help="Tokens a chunk.")] = 256,
    page: Annotated[str, typer.Option(help="Pad each object to pages of this size, such as 4KiB.")] = "1",
    as_json: AsJson = False,
) -> None:
    """List the models, or print how many bytes one of them stores and reads, line by line.

    \b
    kvtrace models
    kvtrace models llama3.1-70b-instruct --tp 8
    kvtrace models gpt-oss-120b --tokens 100000 --chunk 16 --page 4KiB
    kvtrace models ./config.json --kv-dtype fp8
    """
    from kvtrace.core.document.terminal import show_documents
    from kvtrace.core.units import parse_bytes
    from kvtrace.model import explain

    if model is None:
        listing = explain.listing()
        found, shown = {"models": listing}, explain.listing_document(listing)
    else:
        found = explain.describe_model(model, kv_dtype, tensor_parallel, tokens, chunk, parse_bytes(page))
        shown = explain.document(found)
    if as_json:
        emit_json(found)
    else:
        show_documents([shown])
