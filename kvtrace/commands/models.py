"""Print the models, and how many bytes of KV cache one of them makes."""

from __future__ import annotations

from typing import Annotated

import typer

from kvtrace.commands.options import AsJson, TensorParallel
from kvtrace.core.app import emit_json, emit_table


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
    from kvtrace.core.units import parse_bytes
    from kvtrace.model import explain

    if model is None:
        listing = explain.listing()
        if as_json:
            emit_json({"models": listing})
        else:
            emit_table("models, before any tensor-parallel split", explain.COLUMNS, explain.listing_rows(listing))
        return
    found = explain.describe_model(model, kv_dtype, tensor_parallel, tokens, chunk, parse_bytes(page))
    if as_json:
        emit_json(found)
    else:
        typer.echo("\n".join(explain.arithmetic(found)))
