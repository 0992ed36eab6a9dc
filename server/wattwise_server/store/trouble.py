"""What an operator is to make of SQLite's errors."""

from __future__ import annotations

import sqlite3

# By what SQLite says: its error codes reach Python from 3.11 on.
_ADVICE = {
    "disk is full": "make room on its disk",
    "disk I/O error": "look after its disk: is it full, or failing?",
    "readonly database": "may this user write the file and its folder, and is the disk mounted for writing?",
    "unable to open": "may this user read and write the file, and its folder?",
    "malformed": "the file is damaged: stop the server and restore a backup",
    "not a database": "the file is damaged, or none of this program's: restore a backup, or name another file",
}


def trouble(error: BaseException) -> str:
    """SQLite's words with what to do about them; nothing of an error that is not SQLite's."""
    if not isinstance(error, sqlite3.Error):
        return "its connection failed"
    said = str(error)
    advice = next((advice for words, advice in _ADVICE.items() if words in said), "")
    return f"{said}: {advice}" if advice else said
