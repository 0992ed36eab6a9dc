"""Facts about Wattwise. The folders mirror the packages; `scenarios/` holds behaviour tables."""
