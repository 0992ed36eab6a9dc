"""`wattwise web`: the web page, a process of its own that reads from a server as a client of `JobReader`.

Nothing else imports it. Of the server's package it uses the declaration of options alone.
"""
