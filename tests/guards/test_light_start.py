"""Verbs that only read start as fast as Python: they import nothing heavy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

HEAVY = (
    *("torch", "hydra", "omegaconf", "submitit", "sklearn", "numpy", "jinja2", "rich"),
    *("psutil", "pynvml", "textual", "plotly"),
)
NOT_FOR_HELP = (
    *("dataclasses", "inspect", "secrets", "hashlib", "random", "subprocess", "socket"),
    *("asyncio", "hpckit.model.launch", "hpckit.model.events", "hpckit.record"),
)
"""What `hpckit --help` does without: each takes as long as half a start of Python, or more."""

NOT_FOR_LS = ("dataclasses", "inspect", "secrets", "hashlib", "subprocess", "socket", "asyncio")
NOT_FOR_STATUS = ("dataclasses", "inspect", "secrets", "subprocess", "socket", "asyncio")
"""What they do without for a launch that waits."""

PROBE = """
import json, sys
from hpckit.cli.main import HIDDEN_VERBS, VERBS, build_verb_parser
found = []
for verb in [*VERBS, *HIDDEN_VERBS]:
    before = set(sys.modules)
    build_verb_parser(verb).format_help()
    found += [f"{verb}: {name}" for name in HEAVY if name in set(sys.modules) - before]
print(json.dumps(found))
"""


def imported(code: str, environ: Mapping[str, str] | None = None) -> list[str]:
    """Return which heavy packages a fresh Python has imported after this code."""
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60, env=environ)
    names: list[str] = json.loads(done.stdout.splitlines()[-1])
    return names


def test_help_imports_nothing_heavy() -> None:
    """`hpckit --help` is the standard library and ours."""
    code = (
        "import json, sys\nfrom hpckit.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        f"print(json.dumps([name for name in {HEAVY} if name in sys.modules]))"
    )
    assert imported(code) == []


def test_verb_modules_import_nothing_heavy() -> None:
    """A verb's module, and its --help, bring in no heavy package: those come when needed."""
    assert imported(PROBE.replace("HEAVY", repr(HEAVY))) == []


def test_completion_imports_nothing_heavy() -> None:
    """What a shell asks at each press of a key is the standard library, argcomplete and ours."""
    code = (
        "import json, sys\nfrom hpckit.cli.main import build_process_context\n"
        "import hpckit.cli.completion as asked\n"
        "for verb in ('launch', 'status'):\n"
        "    asked._build_full_parser(verb, build_process_context())\n"
        f"print(json.dumps([name for name in {HEAVY} if name in sys.modules]))"
    )
    assert imported(code) == []


def test_argcomplete_is_imported_only_for_a_shell_that_asks() -> None:
    """No other call of hpckit pays for it."""
    code = (
        "import json, sys\nfrom hpckit.cli.main import main\nmain(['ls'])\n"
        "print(json.dumps([name for name in sys.modules if name.startswith('argcomplete')]))"
    )
    assert imported(code) == []


@pytest.mark.parametrize(
    ("words", "without"),
    [(["--help"], NOT_FOR_HELP), (["ls"], NOT_FOR_LS), (["status"], NOT_FOR_STATUS)],
    ids=lambda one: "-".join(one) if isinstance(one, list) else "",
)
def test_quick_verbs_import_nothing_that_they_do_not_use(
    words: list[str], without: Sequence[str], tmp_path: Path
) -> None:
    """They start within a few times of Python's own start, which their imports are most of."""
    environ = {**os.environ, "HPCKIT_OUTPUTS": str(tmp_path / "outputs")}
    render = ("render", "cluster=slurm", "experiment=digits", "code.snapshot=false")
    subprocess.run([sys.executable, "-m", "hpckit", *render], env=environ, check=True, capture_output=True)
    code = (
        f"import json, sys\nfrom hpckit.cli.main import main\nmain({words})\n"
        f"print(json.dumps([name for name in {without} if name in sys.modules]))"
    )
    assert imported(code, environ) == []


def test_import_of_the_package_is_next_to_nothing() -> None:
    """Who only writes `import hpckit`, as each training script does, pays for no other module of ours."""
    bare = "import json, sys; from importlib import import_module; before = set(sys.modules)"
    code = f"{bare}; import hpckit; print(json.dumps(sorted(set(sys.modules) - before)))"
    assert imported(code) == ["__future__", "hpckit"]
