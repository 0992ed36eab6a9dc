"""The evidence for decisions and savings."""
