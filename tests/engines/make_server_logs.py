"""Print the samples `vllm/requests.log` and `sglang/requests.log` of tests/golden/engines by the
servers' own loggers.

Run in each engine's own interpreter: python tests/engines/make_server_logs.py vllm > OUT. SGLang's
request is a stand-in with its fields' names, for io_struct needs all of SGLang; its meta_info has
fields of 0.5.10, from an issue.
"""

import dataclasses
import importlib
import importlib.util
import logging
import sys
import types

SAME = list(range(100, 132))
"""32 tokens that prompts begin with."""


def vllm() -> None:
    """Print what vLLM logs of four requests at level DEBUG, with answers."""
    from vllm.config.logging import LoggingConfig
    from vllm.entrypoints.serve.utils.request_logger import RequestLogger
    from vllm.logger import configure_logging, set_vllm_process_name
    from vllm.sampling_params import SamplingParams

    configure_logging(LoggingConfig(log_level="DEBUG"))
    set_vllm_process_name("APIServer")
    logger, params = RequestLogger(max_log_len=None), SamplingParams(max_tokens=8)
    logger.log_inputs(
        "chatcmpl-1", "say 'hi', prompt_token_ids: [9]", [*SAME, *range(8)], None, params, None
    )
    logger.log_inputs("chatcmpl-2", None, [*SAME, 7, 8, 9], None, params, None)
    logger.log_outputs("chatcmpl-1", "hello", [1, 2, 3], "stop")
    logger.log_outputs("chatcmpl-2", "he", [1, 2], None, is_streaming=True, delta=True)
    logger.log_outputs("chatcmpl-2", "hello you", [1, 2, 3, 4, 5], "length", is_streaming=True)
    logger.log_inputs("cmpl-3-0", "a text alone", None, None, params, None)


def sglang() -> None:
    """Print what SGLang logs of two requests at each of the levels 0 to 3, as text and as JSON."""
    home = importlib.util.find_spec("sglang").submodule_search_locations[0]
    for name in ("sglang", "sglang.srt", "sglang.srt.utils", "sglang.srt.sampling"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [home + name.removeprefix("sglang").replace(".", "/")]
    logging.basicConfig(
        level=logging.INFO,
        format="[%(asctime)s] %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
        stream=sys.stdout,
    )
    kind = dataclasses.make_dataclass(
        "GenerateReqInput", ["rid", "text", "input_ids", "conversation_id"]
    )
    logger_of = importlib.import_module("sglang.srt.utils.request_logger").RequestLogger
    for level in range(4):
        for form in ("text", "json"):
            logger = logger_of(True, level, form, None)
            for number in range(2):
                asked = kind(
                    f"r{level}{number}", None, [*SAME, *range(8 + number)], "c" if number else None
                )
                meta = {
                    "id": asked.rid, "finish_reason": {"type": "stop", "matched": 2}, "prompt_tokens": 40 + number,
                    "weight_version": "default", "completion_tokens": 3, "cached_tokens": 32 * number,
                    "e2e_latency": 1.5,
                    "request_received_ts": 1_779_262_962.5 + 8 * level + 4 * (form == "json") + number,
                }  # fmt: skip
                logger.log_received_request(asked)
                logger.log_finished_request(
                    asked, {"text": "it's 'meta_info': {x", "meta_info": meta}
                )


if __name__ == "__main__":
    {"vllm": vllm, "sglang": sglang}[sys.argv[1]]()
