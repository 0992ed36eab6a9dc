"""Who may reach the server and what they may do there: certificates, tokens, and where it listens.

`guard` puts the parts together. A call passes `admission`, which asks `token_book` who calls and `access` what they
may.
"""
