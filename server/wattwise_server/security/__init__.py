"""Who may connect and what they may do: certificates, tokens, and the address to listen on.

`guard` sets it up. `authorization` checks the token of every call: `token_book` knows the tokens, `access` knows what
each may call.
"""
