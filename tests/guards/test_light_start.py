"""Verbs that only read start as fast as Python: they import nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = (
    *("torch", "hydra", "omegaconf", "submitit", "sklearn", "numpy", "jinja2", "rich"),
    *("psutil", "pynvml", "textual", "plotly"),
)
PROBE = """
import json, sys
from hpckit.cli.main import HIDDEN_VERBS, VERBS, verb_parser
found = []
for verb in [*VERBS, *HIDDEN_VERBS]:
    before = set(sys.modules)
    verb_parser(verb).format_help()
    found += [f"{verb}: {name}" for name in HEAVY if name in set(sys.modules) - before]
print(json.dumps(found))
"""


def imported(code: str) -> list[str]:
    """Return which heavy packages a fresh Python has imported after this code."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
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
        "import json, sys\nfrom hpckit.cli.main import process_context\n"
        "import hpckit.cli.completion as asked\n"
        "for verb in ('launch', 'status'): asked._parser(verb, process_context())\n"
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
