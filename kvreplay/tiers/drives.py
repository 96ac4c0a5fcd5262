"""What a drive says of itself: firmware and SMART data, where a tool that may read them is there."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import msgspec

from kvreplay.tiers.host import block_device, sys_text
from kvtrace.core.run.run_file import Smart

if TYPE_CHECKING:
    from pathlib import Path

_TIMEOUT_S = 10


def firmware(target: Path) -> str | None:
    """Return the firmware revision of the drive beneath `target`; null where the kernel does not tell."""
    disk = block_device(target)
    if disk is None:
        return None
    return next((text for name in ("firmware_rev", "rev") if (text := sys_text(disk / "device" / name))), None)


def smart(target: Path) -> Smart:
    """Read the SMART data of the drive beneath `target`, by smartctl or nvme-cli."""
    disk = block_device(target) if target.exists() else None
    if disk is None:
        return Smart(values=None, source=None, reason="no block device is seen beneath it")
    tools = (
        ("smartctl", ["--json", "--all", f"/dev/{disk.name}"]),
        ("nvme", ["smart-log", f"/dev/{disk.name}", "--output-format=json"]),
    )
    reason = "neither smartctl nor nvme is installed"
    for name, arguments in tools:
        program = shutil.which(name)
        if program is None:
            continue
        values, reason = _ask([program, *arguments])
        if values is not None:
            return Smart(values=values, source=name, reason=None)
    return Smart(values=None, source=None, reason=reason)


def _ask(command: list[str]) -> tuple[dict[str, Any] | None, str]:
    name = command[0].rsplit("/", maxsplit=1)[-1]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False)  # noqa: S603 - fixed names
        answer = msgspec.json.decode(done.stdout, type=dict[str, Any])
    except (OSError, subprocess.TimeoutExpired, msgspec.DecodeError) as error:
        return None, f"{name} gave nothing: {str(error)[:100]}"
    if name == "nvme":
        return answer, ""
    for key in ("nvme_smart_health_information_log", "ata_smart_attributes"):
        if key in answer:
            return answer[key], ""
    messages = [str(m.get("string")) for m in answer.get("smartctl", {}).get("messages", [])]
    return None, f"smartctl: {'; '.join(messages) or 'the drive has no SMART data'}"
