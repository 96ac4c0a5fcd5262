"""What both drivers of vLLM share.

Prompts of a Mooncake trace, its scheduler over a made-up model, and the recording.

For the interpreter of vLLM's environment; imports of vllm come after `import_vllm`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import threading
import time
from pathlib import Path

BLOCK, TRACE_BLOCK, LAYER_TOKEN_BYTES = 16, 512, 256
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 256,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "max_position_embeddings": 131072, "vocab_size": 1024, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
}  # fmt: skip
"""The scheduler wants a model's config; nothing is computed, and the KV cache's shape is ours."""
DEEPSEEK = LLAMA | {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "kv_lora_rank": 64, "q_lora_rank": 64,
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 64, "v_head_dim": 64,
}  # fmt: skip
"""One whose attention is of a latent (MLA), which is the same on every rank."""
STEPS = 200_000


def import_vllm():
    """Import vLLM as it runs without a GPU, and return its version."""
    os.environ |= {
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
        "HF_HUB_OFFLINE": "1",
    }
    from vllm import __version__, platforms
    from vllm.platforms.cpu import CpuPlatform

    platforms._current_platform = CpuPlatform()
    return __version__


def prompts(trace, count):
    """Return the tokens of the first `count` requests.

    Prompts share exactly the prefixes that their blocks share.
    """
    with trace.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line, _ in zip(lines, range(count), strict=False)]
    return [
        [
            token
            for block in row["hash_ids"]
            for token in range(block * TRACE_BLOCK, (block + 1) * TRACE_BLOCK)
        ][: row["input_length"]]
        for row in rows
    ]


class Engine:
    """vLLM's scheduler with a connector, and what its worker tells it.

    One token a step for each request.
    """

    def __init__(self, folder, asked, *, connector, extra, layers, has_gpu_cache, token_bytes=LAYER_TOKEN_BYTES,
                 ranks=1, is_latent=False, gpu_blocks=None, sequences=1, budget=8192, answer=1):  # fmt: skip
        """Set vLLM up for prompts like `asked`, with its model's config in `folder`.

        The GPU has `gpu_blocks`, else what one prompt needs; a step computes up to `budget` tokens
        of `sequences`. No `answer` is longer than so many tokens. Each of the `ranks` has so many
        `token_bytes` in a layer, of a head's keys and values or of a latent.
        """
        import torch
        from vllm.config import (
            CacheConfig,
            DeviceConfig,
            KVTransferConfig,
            ModelConfig,
            ParallelConfig,
            SchedulerConfig,
            VllmConfig,
        )
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import (
            get_request_block_hasher,
            init_none_hash,
            kv_cache_groups_tp_replicas,
        )
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_interface import (
            FullAttentionSpec,
            KVCacheConfig,
            KVCacheGroupSpec,
            KVCacheTensor,
            MLAAttentionSpec,
        )
        from vllm.v1.structured_output import StructuredOutputManager

        (folder / "config.json").write_text(json.dumps(DEEPSEEK if is_latent else LLAMA))
        longest = max(map(len, asked)) + answer + BLOCK
        self.gpu_blocks, page = gpu_blocks or longest // BLOCK + 2, BLOCK * token_bytes
        self.config = VllmConfig(
            model_config=ModelConfig(model=str(folder), tokenizer=str(folder), skip_tokenizer_init=True,
                                     dtype="bfloat16", seed=0, max_model_len=longest, enforce_eager=True),
            scheduler_config=SchedulerConfig(max_num_seqs=sequences, max_num_batched_tokens=budget,
                                             max_model_len=longest, enable_chunked_prefill=True,
                                             is_encoder_decoder=False),
            cache_config=CacheConfig(block_size=BLOCK, gpu_memory_utilization=0.9, cache_dtype="auto",
                                     enable_prefix_caching=has_gpu_cache),
            kv_transfer_config=KVTransferConfig(kv_connector=connector, kv_role="kv_both",
                                                kv_connector_extra_config=extra) if connector else None,
            device_config=DeviceConfig("cpu"),
            parallel_config=ParallelConfig(tensor_parallel_size=ranks, distributed_executor_backend="mp"),
        )  # fmt: skip
        self.config.cache_config.num_gpu_blocks = self.gpu_blocks
        # What the CPU's platform turns off for a latent (platforms/cpu.py), and a GPU has.
        self.config.cache_config.enable_prefix_caching = has_gpu_cache
        self.config.scheduler_config.enable_chunked_prefill = True
        self.config.scheduler_config.max_num_batched_tokens = budget
        names = [f"layer{n}" for n in range(layers)]
        of_layer = {"block_size": BLOCK, "num_kv_heads": 1, "dtype": torch.bfloat16}
        # Two bytes an element; a latent as its layers have it
        # (model_executor/layers/attention/mla_attention.py:1357).
        spec = (MLAAttentionSpec(head_size=token_bytes // 2, max_tp_shards=1, **of_layer) if is_latent else
                FullAttentionSpec(head_size=token_bytes // 4, **of_layer))  # fmt: skip
        tensor = KVCacheTensor(size=page * layers * self.gpu_blocks, layers=names,
                               layer_stride=page * self.gpu_blocks, block_stride=page)  # fmt: skip
        self.caches = KVCacheConfig(num_blocks=self.gpu_blocks, kv_cache_tensors=[tensor],
                                    kv_cache_groups=[KVCacheGroupSpec(names, spec)])  # fmt: skip
        self.caches.kv_tp_replicas = kv_cache_groups_tp_replicas(self.caches.kv_cache_groups, ranks)
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(BLOCK, sha256)
        self.scheduler = Scheduler(vllm_config=self.config, kv_cache_config=self.caches, block_size=BLOCK,
                                   structured_output_manager=StructuredOutputManager(self.config),
                                   log_stats=False)  # fmt: skip

    def request(self, number, tokens, answer=1):
        """Return request `number`, whose `answer` has so many tokens."""
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        return Request(request_id=f"r{number}", prompt_token_ids=tokens, pooling_params=None,
                       sampling_params=SamplingParams(max_tokens=answer, ignore_eos=True),
                       block_hasher=self._hasher)  # fmt: skip

    def answer(self, scheduled, received=(), worker=None):
        """Tell the scheduler that a step is done.

        Which requests' loads ended, and what the worker says.
        """
        from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

        ids, asked = list(scheduled.num_scheduled_tokens), self.scheduler.requests
        tokens = [
            [7] if asked[name].num_computed_tokens >= asked[name].num_tokens else [] for name in ids
        ]
        said = KVConnectorOutput(
            finished_recving=set(received) or None, kv_connector_worker_meta=worker
        )
        output = ModelRunnerOutput(req_ids=ids, req_id_to_index={name: n for n, name in enumerate(ids)},
                                   sampled_token_ids=tokens,
                                   kv_connector_output=said if received or worker else None)  # fmt: skip
        self.scheduler.update_from_output(scheduled, output)

    def serve(self, request, step, is_idle):
        """Take steps until `request` is answered and all that followed from it is done."""
        self.scheduler.add_request(request)
        for _ in range(STEPS):
            if request.is_finished() and not self.scheduler.has_finished_requests() and is_idle():
                return
            if not step():
                time.sleep(0.0005)  # a look-up of files is under way
        raise RuntimeError(f"{request.request_id} does not end: {request.status}")


class Recording:
    """Operations in order, as lines of operation, request, group, first place, step to the next,
    and how many.
    """

    def __init__(self):
        """Record nothing yet, before the first request."""
        self.request, self._done, self._lock = -1, [], threading.Lock()

    def add(self, operation, group, place):
        """Record one operation of the present request."""
        with self._lock:
            self._done.append((operation, self.request, group, place))

    def runs(self):
        """Yield what was recorded, runs of neighbours as one.

        Operation, request, group, place, step, count.
        """
        at, done = 0, self._done
        while at < len(done):
            kind, first = done[at][:3], done[at][3]
            step = done[at + 1][3] - first if at + 1 < len(done) and done[at + 1][:3] == kind else 1
            step = step if step in (1, -1) else 1
            count = 1
            while at + count < len(done) and done[at + count] == (*kind, first + step * count):
                count += 1
            yield *kind, first, step, count
            at += count

    def write(self, out, line):
        """Write each run as `line` of it to the file `out`."""
        with gzip.GzipFile(out, "wb", 9, mtime=0) as file:
            file.writelines(f"{line(*run)}\n".encode() for run in self.runs())


def arguments():
    """Return a parser of what each driver is told.

    The trace, the output, a folder for a config, how many requests.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("trace", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dir", type=folder_of, required=True)
    parser.add_argument("--requests", type=int, required=True)
    return parser


def folder_of(text):
    """Return an existing folder's absolute path."""
    folder = Path(text).resolve()
    if not folder.is_dir():
        raise SystemExit(f"no folder: {folder}")
    return folder
