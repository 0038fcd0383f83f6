"""What the filters promise: no value leaves the place it was put into."""

from __future__ import annotations

import shlex

import pytest
from fakes.slurm.batch import words_of  # the fake's reading of #SBATCH lines
from hypothesis import given
from hypothesis import strategies as st

from hpckit.errors import TemplateError
from hpckit.slurm.quoting import quote_for_sbatch, quote_for_shell, refuse_unquoted_value

LINES = st.text(st.characters(exclude_categories=["Cc", "Cs"]))


@given(LINES)
def test_sbatch_value_is_one_word_for_sbatch(text: str) -> None:
    """Whatever is on one line, sbatch reads one option with that very value."""
    assert words_of(f" --comment={quote_for_sbatch(text)} --next") == [f"--comment={text}", "--next"]


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_shell_value_is_one_word_for_a_shell(text: str) -> None:
    """Whatever it is, a shell reads one word with that very value."""
    assert shlex.split(f"echo {quote_for_shell(text)} next") == ["echo", text, "next"]


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "a\0b", "\x1b[31m"])
def test_sbatch_value_with_control_characters_is_refused(text: str) -> None:
    """What would end the line, or hide in it, is an error that shows it."""
    with pytest.raises(TemplateError, match="control character"):
        quote_for_sbatch(text)


@pytest.mark.parametrize("value", ["text", True, None, 1.5])
def test_unfiltered_values_are_refused(value: object) -> None:
    """Only filtered values and whole numbers are printed."""
    with pytest.raises(TemplateError, match="without a filter"):
        refuse_unquoted_value(value)
    assert refuse_unquoted_value(3) == 3
    assert refuse_unquoted_value(quote_for_shell("a b")) == "'a b'"
