"""Write the sample `spans.jsonl` of tests/golden/engines with OpenTelemetry's own SDK and encoder.

Run where opentelemetry-sdk and opentelemetry-exporter-otlp are installed: python
tests/engines/make_otel_spans.py OUT.
"""

import json
import sys
from pathlib import Path

from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

BEGIN_NS = 1_790_000_000 * 10**9


def main(out: Path) -> None:
    """Write four spans of model calls and one of a tool into `out`, two spans a line."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("sample")
    for number, (conversation, asked, answered) in enumerate(
        [("a", 100, 20), ("b", 50, 5), ("a", 150, 30)]
    ):
        span = tracer.start_span("chat", start_time=BEGIN_NS + number * 10**9)
        span.set_attribute("gen_ai.usage.input_tokens", asked)
        span.set_attribute("gen_ai.usage.output_tokens", answered)
        span.set_attribute("gen_ai.usage.cache_read.input_tokens", 16 * number)
        span.set_attribute("gen_ai.conversation.id", conversation)
        span.end(end_time=BEGIN_NS + number * 10**9 + 5 * 10**8)
    tracer.start_span("execute_tool", start_time=BEGIN_NS).end(end_time=BEGIN_NS + 1)
    spans = exporter.get_finished_spans()
    lines = [MessageToDict(encode_spans(spans[at : at + 2])) for at in (0, 2)]
    (out / "spans.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
