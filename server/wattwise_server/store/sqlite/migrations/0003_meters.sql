-- The kind of meter that energy comes from, and the others that came before it in the job; '': none was said.
ALTER TABLE jobs ADD COLUMN meter TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN other_meter TEXT NOT NULL DEFAULT '';
ALTER TABLE trials ADD COLUMN meter TEXT NOT NULL DEFAULT '';
ALTER TABLE trials ADD COLUMN other_meter TEXT NOT NULL DEFAULT '';
