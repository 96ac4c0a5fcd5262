"""`kvtrace examples` writes the files that the documentation reads."""

from conftest import ROOT, run_cli


def test_the_files_are_those_of_the_checkout(tmp_path):
    run_cli("kvtrace", "examples", cwd=tmp_path)
    written = {path.name: path.read_bytes() for path in (tmp_path / "examples").iterdir()}
    assert {"conversation.jsonl", "drive.json", "study.toml", "notebook.ipynb"} <= set(written)
    for name, content in written.items():
        assert (ROOT / "examples" / name).read_bytes() == content


def test_nothing_of_the_users_is_overwritten(tmp_path):
    mine = tmp_path / "examples" / "study.toml"
    mine.parent.mkdir()
    mine.write_text("mine")
    refused = run_cli("kvtrace", "examples", cwd=tmp_path, check=False)
    assert (refused.returncode, refused.stderr.count("\n")) == (4, 1)
    assert [path.name for path in mine.parent.iterdir()] == ["study.toml"]
    assert mine.read_text() == "mine"
    run_cli("kvtrace", "examples", "--force", cwd=tmp_path)
    assert mine.read_bytes() == (ROOT / "examples" / "study.toml").read_bytes()
    # The checkout's own folder is not written onto itself.
    own = run_cli("kvtrace", "examples", "--force", "-o", ROOT / "examples", check=False)
    assert own.returncode == 4
