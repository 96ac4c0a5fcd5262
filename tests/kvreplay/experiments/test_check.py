"""`kvreplay mlperf check`.

A result tree as mlpstorage writes it has no fault, and each of 40 seeded ones is found.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from phrases import Saying

from kvreplay.experiments.mlperf_check import RULES, check_tree
from kvtrace.core.errors import TraceError

DIGEST = "0123456789abcdef0123456789abcdef"
RANKS, TRIALS = 2, 3
OPTIONS = {
    "1": ("llama3.1-8b", 200, 0, 16),
    "2": ("llama3.1-8b", 100, 4, 16),
    "3": ("llama3.1-70b-instruct", 70, 0, 4),
}
LEAF = "closed/Acme/results/sys-1/kv_cache/llama3.1-8b/run/20260905_130000"


def command(option: str, trial: int, **changed: Any) -> str:
    model, users, memory, allocations = OPTIONS[option]
    flags = {
        "rank-output-base": f"/results/{LEAF}/option_{option}/trial_{trial}",
        "rank-cache-base": "/mnt/nvme/kvcache",
        "seed-base": 42,
        "config": "/opt/storage/kv_cache_benchmark/config.yaml",
        "model": model,
        "num-users": users,
        "duration": 300,
        "gpu-mem-gb": 0,
        "cpu-mem-gb": memory,
        "max-concurrent-allocs": allocations,
        "generation-mode": "none",
    } | changed
    words = " ".join(f"--{name} {value}" for name, value in flags.items())
    return (
        f"mpirun -n {RANKS} -host a:1,b:1 python3 /opt/storage/kv_cache_benchmark/mlperf_wrapper.py"
        f" {words}"
    )


def rank_result(option: int, trial: int, rank: int) -> dict[str, Any]:
    at = option + trial / 10 + rank / 100
    stats = {
        "storage_entries": 50,
        "tier_storage_read_bandwidth_gbps": at,
        "tier_storage_write_bandwidth_gbps": at / 3,
        "storage_read_device_p95_ms": 10 * at,
        "storage_write_device_p95_ms": 20 * at,
    }
    speeds = {
        "avg_throughput_tokens_per_sec": 100 * at,
        "storage_throughput_tokens_per_sec": 30 * at,
    }
    return {"summary": {"elapsed_time": 301.5, **speeds, "cache_stats": stats}}


def option_result(option: int) -> dict[str, Any]:
    ranks = [
        [rank_result(option, trial, rank)["summary"] for rank in range(RANKS)]
        for trial in range(TRIALS)
    ]

    def mean_of_sums(*place: str) -> float:
        return fmean(
            sum(s[place[0]] if len(place) == 1 else s[place[0]][place[1]] for s in trial)
            for trial in ranks
        )

    return {
        "option": option,
        "aggregated_read_bandwidth_gbps": mean_of_sums(
            "cache_stats", "tier_storage_read_bandwidth_gbps"
        ),
        "aggregated_write_bandwidth_gbps": mean_of_sums(
            "cache_stats", "tier_storage_write_bandwidth_gbps"
        ),
        "aggregated_avg_throughput_tokens_per_sec": mean_of_sums("avg_throughput_tokens_per_sec"),
        "aggregated_storage_throughput_tokens_per_sec": mean_of_sums(
            "storage_throughput_tokens_per_sec"
        ),
        "aggregated_device_read_p95_ms": max(
            s["cache_stats"]["storage_read_device_p95_ms"] for t in ranks for s in t
        ),
        "aggregated_device_write_p95_ms": max(
            s["cache_stats"]["storage_write_device_p95_ms"] for t in ranks for s in t
        ),
        "rank_count": RANKS,
        "trial_count": TRIALS,
        "partial_failure": False,
        "missing_files": [],
        "cpu_tier_ranks": [],
    }


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def change(path: Path, *keys: str, to: Any) -> None:
    """Change one value in a JSON file; None removes it."""
    content = json.loads(path.read_text())
    inside = content
    for key in keys[:-1]:
        inside = inside[key]
    if to is None:
        del inside[keys[-1]]
    else:
        inside[keys[-1]] = to
    path.write_text(json.dumps(content))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a tree as mlpstorage writes it, of two ranks."""
    root = tmp_path / "results"
    leaf = root / LEAF
    commands = [
        {"command": command(option, trial)} for option in OPTIONS for trial in range(TRIALS)
    ]
    args = {
        "mode": "closed",
        "trials": 3,
        "inter_option_delay": 90,
        "cache_dir": "/mnt/nvme/kvcache",
    }
    metadata = {
        "benchmark_type": "kv_cache",
        "run_datetime": leaf.name,
        "num_processes": RANKS,
        # What argparse held, and no run used: it says nothing.
        "parameters": {"model": "tiny-1b", "num_users": 7},
        "args": args | {"results_dir": "/results"},
        "command_output_files": [{"command": "mpirun -n 2 python3 -c 'probe'"}, *commands],
        "exit_status": 0,
        "provenance_file": "provenance.json",
    }
    write(leaf / f"kv_cache_{leaf.name}_metadata.json", metadata)
    layout = {"npernode": 1, "host_count": 2, "total_ranks": RANKS, "partial_failure": False}
    options = {option: option_result(int(option)) for option in OPTIONS}
    write(leaf / f"kvcache_run_summary_{leaf.name}.json", layout | {"options": options})
    for option in OPTIONS:
        for trial in range(TRIALS):
            for rank in range(RANKS):
                folder = leaf / f"option_{option}" / f"trial_{trial}" / f"rank_{rank}"
                write(
                    folder / "kvcache_results_20260905_130100.json",
                    rank_result(int(option), trial, rank),
                )
    write(leaf / ".mlps-code-image", f"md5-tree-v2:{DIGEST}\n")
    write(leaf / "provenance.json", {"tool": {"code_image": f"md5-tree-v2:{DIGEST}"}})
    write(root / "code-images" / ".mlps-image-pool", "")
    write(root / "code-images" / f"code-{DIGEST[:8]}" / ".code-hash.json", {"hash": DIGEST})
    write(root / ".git" / "config", "")
    submitter = root / "closed" / "Acme"
    for name in ("sys-1.yaml", "sys-1.pdf", "README.md"):
        write(submitter / "systems" / name, "")
    write(submitter / "submission.yaml", "")
    return root


def metadata_of(root: Path) -> Path:
    return next((root / LEAF).glob("*_metadata.json"))


def summary_of(root: Path) -> Path:
    return next((root / LEAF).glob("kvcache_run_summary*"))


def rank_of(root: Path, option: int = 1, trial: int = 0, rank: int = 0) -> Path:
    return next(
        (root / LEAF / f"option_{option}" / f"trial_{trial}" / f"rank_{rank}").glob("*.json")
    )


def rename(path: Path, name: str) -> None:
    path.rename(path.parent / name)


def ran(root: Path, option: str, **changed: Any) -> None:
    """Change the command of the first trial of an option."""
    at = 1 + TRIALS * (int(option) - 1)
    content = json.loads(metadata_of(root).read_text())
    content["command_output_files"][at]["command"] = command(option, 0, **changed)
    metadata_of(root).write_text(json.dumps(content))


def all_in_memory(root: Path) -> None:
    for trial in range(TRIALS):
        for rank in range(RANKS):
            change(rank_of(root, 2, trial, rank), "summary", "cache_stats", "storage_entries", to=0)


SEEDED = {
    "a folder too many": ("2.1.2", lambda t: (t / "notes").mkdir()),
    "Closed": ("2.1.2", lambda t: rename(t / "closed", "Closed")),
    "no systems": ("2.1.5", lambda t: rename(t / "closed/Acme/systems", "Systems")),
    "code beside results": ("2.1.5", lambda t: (t / "closed/Acme/code").mkdir()),
    "no pointer": ("2.1.6", lambda t: (t / LEAF / ".mlps-code-image").unlink()),
    "no image": ("2.1.6", lambda t: shutil.rmtree(t / "code-images" / f"code-{DIGEST[:8]}")),
    "another image": (
        "2.1.6",
        lambda t: write(
            t / "code-images" / f"code-{DIGEST[:8]}" / ".code-hash.json", {"hash": "f" * 32}
        ),
    ),
    "no pdf": ("2.1.7", lambda t: (t / "closed/Acme/systems/sys-1.pdf").unlink()),
    "a system of another name": (
        "2.1.7",
        lambda t: rename(t / "closed/Acme/systems/sys-1.yaml", "sys-2.yaml"),
    ),
    "a description too many": ("2.1.8", lambda t: write(t / "closed/Acme/systems/sys-2.yaml", "")),
    "kvcache": ("2.1.10", lambda t: (t / "closed/Acme/results/sys-1/kvcache").mkdir()),
    "validate for run": ("2.1.12", lambda t: rename((t / LEAF).parent, "validate")),
    "a time with a dash": ("2.1.12", lambda t: rename(t / LEAF, "20260905-130000")),
    "no stamp": ("PROV-01", lambda t: (t / LEAF / "provenance.json").unlink()),
    "a stamp of another run": (
        "PROV-01",
        lambda t: change(t / LEAF / "provenance.json", "tool", "code_image", to="x:0"),
    ),
    "more users": ("6.3.1.1", lambda t: ran(t, "1", **{"num-users": 201})),
    "a smaller model": ("6.3.1.1", lambda t: ran(t, "3", model="llama3.1-8b")),
    "a trial cut off": (
        "6.3.1.1",
        lambda t: change(rank_of(t), "summary", "elapsed_time", to=120.0),
    ),
    "another seed": ("6.3.2.1", lambda t: ran(t, "1", **{"seed-base": 7})),
    "a shorter pause": (
        "6.3.2.1",
        lambda t: change(metadata_of(t), "args", "inter_option_delay", to=20),
    ),
    "a configuration of one's own": ("6.3.2.1", lambda t: ran(t, "3", config="/home/me/mine.yaml")),
    "autoscaling": ("6.3.2.2", lambda t: ran(t, "2", **{"enable-autoscaling": ""})),
    "a rank too many": ("6.3.3.1", lambda t: (t / LEAF / "option_1/trial_0/rank_2").mkdir()),
    "hosts that do not add up": ("6.3.3.1", lambda t: change(summary_of(t), "host_count", to=3)),
    "a rank without result": ("6.3.3.3", lambda t: rank_of(t, 2, 1, 1).unlink()),
    "a rank's result copied": (
        "6.3.3.3",
        lambda t: shutil.copy(rank_of(t, 1, 2, 0), rank_of(t, 1, 2, 1)),
    ),
    "two results of a rank": (
        "6.3.3.3",
        lambda t: shutil.copy(rank_of(t), rank_of(t).with_name("kvcache_results_2.json")),
    ),
    "a bandwidth that no rank has": (
        "6.3.4.1",
        lambda t: change(summary_of(t), "options", "1", "aggregated_read_bandwidth_gbps", to=9.0),
    ),
    "a throughput that no rank has": (
        "6.3.4.2",
        lambda t: change(rank_of(t, 3), "summary", "storage_throughput_tokens_per_sec", to=1.0),
    ),
    "a mean of P95s": (
        "6.3.4.3",
        lambda t: change(summary_of(t), "options", "2", "aggregated_device_read_p95_ms", to=20.0),
    ),
    "a rank in memory": (
        "6.3.4.4",
        lambda t: change(rank_of(t, 1), "summary", "cache_stats", "storage_entries", to=0),
    ),
    "all ranks in memory": ("6.3.4.4", all_in_memory),
    "no summary": ("6.3.4.5", lambda t: summary_of(t).unlink()),
    "an option without result": (
        "6.3.4.5",
        lambda t: change(summary_of(t), "options", "3", to=None),
    ),
    "a run that failed": ("6.3.4.5", lambda t: change(metadata_of(t), "exit_status", to=1)),
    "metadata cut off": (
        "6.3.4.5",
        lambda t: write(metadata_of(t), metadata_of(t).read_text()[:-9]),
    ),
    "no cache folder": ("6.4.1", lambda t: change(metadata_of(t), "args", "cache_dir", to="")),
    "the cache in the results": (
        "6.4.1",
        lambda t: change(metadata_of(t), "args", "cache_dir", to="/results/cache"),
    ),
    "RAG": ("6.6.1", lambda t: ran(t, "2", **{"enable-rag": ""})),
    "a run of open": ("6.6.1", lambda t: change(metadata_of(t), "args", "mode", to="open")),
}


def test_a_tree_as_the_tool_writes_it_has_no_fault(tree):
    found = check_tree(tree, [])
    assert (found.runs, found.findings) == (1, [])
    assert {rule.reference: rule.kept.value for rule in found.rules} == {
        rule: "undetermined" if rule == "6.4.1" else "kept" for rule in RULES
    }


@pytest.mark.parametrize("name", SEEDED)
def test_each_seeded_fault_is_found(tree, name):
    rule, seed = SEEDED[name]
    seed(tree)
    assert rule in {each.rule for each in check_tree(tree, []).findings}


def test_every_rule_has_a_seeded_fault():
    assert {rule for rule, _ in SEEDED.values()} == set(RULES)


def test_a_recorded_workload_is_taken_before_the_commands(tree):
    table = {
        option: {
            "model": model,
            "num_users": users,
            "duration": 300,
            "gpu_mem_gb": 0,
            "cpu_mem_gb": memory,
            "max_concurrent_allocs": allocations,
            "generation_mode": "none",
        }
        for option, (model, users, memory, allocations) in OPTIONS.items()
    }
    sequence = {"seed": 42, "trials": 3, "inter_option_delay_s": 90, "config": "default"}
    change(
        metadata_of(tree), "parameters", to={"options": table, "sequence": sequence, "features": {}}
    )
    change(metadata_of(tree), "command_output_files", to=[])
    assert not check_tree(tree, []).findings
    change(metadata_of(tree), "parameters", "features", to={"rag_num_docs": 10})
    assert [(f.rule, f.what) for f in check_tree(tree, []).findings] == [
        ("6.6.1", Saying("rag_num_docs 10 … CLOSED"))
    ]


@pytest.mark.star
@pytest.mark.parametrize("value", [None, [], "x", -1, 1e300, True])
@pytest.mark.parametrize(
    "place", [("args",), ("args", "trials"), ("num_processes",), ("command_output_files",)]
)
def test_values_that_no_tool_writes_are_faults_not_errors(tree, place, value):
    content = json.loads(metadata_of(tree).read_text())
    inside = content if len(place) == 1 else content[place[0]]
    inside[place[-1]] = value
    metadata_of(tree).write_text(json.dumps(content))
    for name in ("total_ranks", "npernode", "options"):
        change(summary_of(tree), name, to="x" if value is None else value)
    assert check_tree(tree, []).findings


def test_an_open_run_may_change_the_workload(tree):
    rename(tree / "closed", "open")
    change(
        tree / LEAF.replace("closed", "open", 1) / metadata_name(tree), "args", "mode", to="open"
    )
    ran_open = tree / LEAF.replace("closed", "open", 1)
    content = json.loads((ran_open / metadata_name(tree)).read_text())
    content["command_output_files"][1]["command"] = command("1", 0, **{"num-users": 400})
    (ran_open / metadata_name(tree)).write_text(json.dumps(content))
    found = check_tree(tree, [])
    assert not found.findings
    assert {r.reference for r in found.rules if r.kept.value == "undetermined"} == {
        "6.3.1.1",
        "6.3.2.1",
        "6.3.2.2",
        "6.4.1",
        "6.6.1",
    }


def metadata_name(root: Path) -> str:
    return next(root.glob("*/Acme/results/sys-1/kv_cache/*/run/*/*_metadata.json")).name


def test_a_folder_that_is_no_tree_is_refused(tmp_path):
    with pytest.raises(TraceError, match="no closed"):
        check_tree(tmp_path, [])
    with pytest.raises(TraceError, match="folder"):
        check_tree(tmp_path / "none", [])
