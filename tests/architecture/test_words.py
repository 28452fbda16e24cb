"""The language of the code: the field's words in names, and sentences that begin with their object.

The words are those of the project's former dialect, which no reader could search for. An exception
stands in ALLOWED with its reason.
"""

from __future__ import annotations

import ast
import io
import keyword
import re
import tokenize
from collections.abc import Iterator

from tests.architecture.rules import Violation
from tests.architecture.sources import FOLDERS, modules
from tests.architecture.test_layers import check

FIRST_WORDS = frozenset(
    {"What", "Whether", "How", "Who", "Whose", "Whom", "Of", "Those", "By", "Where", "Which"}
)
"""A docstring that begins with one of these does not name its object."""
NOT_NAMES = {
    "about": "topic_partition, subject",
    "aside": "quarantined",
    "beside": "concurrently, in background",
    "bury": "dead-letter",
    "buried": "dead_lettered",
    "hear": "receive, poll",
    "heard": "received, observed",
    "letter": "dead letter, retry message, republication",
    "letters": "dead letters, republications",
    "news": "activity",
    "pardon": "reset",
    "said": "reported, published, settings",
    "say": "report, send",
    "says": "reports",
    "sign": "heartbeat",
    "spoken": "referenced",
    "tell": "report, send, warn",
    "told": "reported, sent",
    "twin": "wrapper",
    "unheard": "pending",
    "unsaid": "pending",
    "unseen": "pending",
    "wanted": "filter, columns, predicate",
}
"""Word of an identifier -> the field's words for it."""
ALLOWED = {
    "dead_letter": "Pulsar's own term",
    "retry_letter": "Pulsar's own term",
    "DeadLetter": "Pulsar's own term",
    "DEAD_LETTER": "Pulsar's own term",
    "deadLetter": "Pulsar's option names",
    "retryLetter": "Pulsar's option names",
    "tell": "the method of Python's binary files",
}
"""Part of an identifier -> the reason why it stays."""


def test_no_docstring_begins_with_a_relative_or_question_word() -> None:
    check(
        Violation(file, line, f"begins with {word}", "name the object, or begin with a verb")
        for file, text in modules(*FOLDERS)
        for line, word in _first_words(text)
        if word in FIRST_WORDS
    )


def test_identifiers_are_words_of_the_field() -> None:
    check(
        Violation(file, line, f"names {name}", f"the field says {NOT_NAMES[word]}")
        for file, text in modules(*FOLDERS)
        for line, name in _identifiers(text)
        if (word := _dialect(name))
    )


def test_the_rules_notice_what_they_forbid() -> None:
    assert list(_first_words('def f():\n    """Whether it runs."""\n')) == [(2, "Whether")]
    assert _dialect("set_aside") == "aside"
    assert not _dialect("dead_letter_topic")
    assert _dialect("letters") == "letters"


def _first_words(text: str) -> Iterator[tuple[int, str]]:
    """The line and first word of each docstring, and of each text behind a constant or field."""
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        for each in body if isinstance(body, list) else ():
            if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
                value = each.value.value
                if isinstance(value, str) and (found := re.match(r"\s*(\w+)", value)):
                    yield each.lineno, found[1]


def _identifiers(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
            yield token.start[0], token.string


def _dialect(name: str) -> str | None:
    """The first word of the identifier that is none of the field's; None if all are."""
    if any(part in name for part in ALLOWED if part != "tell") or name == "tell":
        return None
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return next((word.lower() for word in words if word.lower() in NOT_NAMES), None)
