"""Callbacks for common trainers; each module requires the optional extra of its name."""
