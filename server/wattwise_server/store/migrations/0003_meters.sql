-- The kind of meter that energy comes from, and another kind that the job was measured by before; '': none was said.
ALTER TABLE jobs ADD COLUMN meter TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN other_meter TEXT NOT NULL DEFAULT '';
ALTER TABLE trials ADD COLUMN meter TEXT NOT NULL DEFAULT '';
ALTER TABLE trials ADD COLUMN other_meter TEXT NOT NULL DEFAULT '';
