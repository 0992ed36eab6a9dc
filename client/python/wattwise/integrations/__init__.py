"""Callbacks for the trainers that people already use; each module needs the optional extra of its name."""
