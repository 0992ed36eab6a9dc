"""Numbers, units, states and sentences for terminal and page, which get the facts behind them from the server.

The commands, the driver and `wattwise_web` use this package.
"""
