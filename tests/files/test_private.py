"""Files that only their owner may read."""

import stat
from pathlib import Path

from fedprox.files.whole import write_private


def test_a_private_file_is_new_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    elsewhere, path = tmp_path / "elsewhere", tmp_path / "secret"
    elsewhere.write_text("other")
    path.symlink_to(elsewhere)
    write_private(path, b"secret")
    assert path.read_bytes() == b"secret"
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    assert elsewhere.read_text() == "other"
