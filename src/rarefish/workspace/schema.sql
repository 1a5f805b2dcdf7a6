-- Labels are rows that are never changed: an undo is a separate row. Values that are derived from labels (pick.is_open)
-- are updated in the same transaction, and `rarefish check` compares the two.

CREATE TABLE setting (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;

CREATE TABLE class (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;

CREATE TABLE image (
    id INTEGER PRIMARY KEY,
    part TEXT NOT NULL CHECK (part IN ('pool', 'validation')),
    path BLOB NOT NULL,            -- relative to the part's root; a file's name need not be UTF-8
    hash TEXT NOT NULL,            -- of the content; empty where the file cannot be read
    bytes INTEGER NOT NULL,
    modified INTEGER NOT NULL,     -- nanoseconds, as the file system tells
    width INTEGER NOT NULL,
    height INTEGER NOT NULL,
    class INTEGER REFERENCES class,
    state TEXT NOT NULL CHECK (state IN ('ready', 'duplicate', 'unreadable', 'trusted')),
    note TEXT NOT NULL DEFAULT '', -- why it is left out
    UNIQUE (part, path)
) STRICT;
CREATE INDEX image_by_hash ON image (hash);

CREATE TABLE round (number INTEGER PRIMARY KEY, made_at TEXT NOT NULL, how TEXT NOT NULL) STRICT;

CREATE TABLE pick (
    image INTEGER PRIMARY KEY REFERENCES image,
    round INTEGER NOT NULL REFERENCES round,
    rank INTEGER NOT NULL,
    center INTEGER REFERENCES image,
    center_guess INTEGER REFERENCES class, -- what the model took the center for
    similarity REAL NOT NULL,
    guess INTEGER REFERENCES class,
    probabilities TEXT NOT NULL,   -- JSON: the most probable classes, [[number, probability], …]
    is_open INTEGER NOT NULL DEFAULT 1,
    UNIQUE (round, rank)
) STRICT;
CREATE INDEX pick_open ON pick (round, rank) WHERE is_open;

CREATE TABLE label (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    image INTEGER NOT NULL REFERENCES image,
    round INTEGER,
    who TEXT NOT NULL,
    made_at TEXT NOT NULL,
    answer TEXT NOT NULL CHECK (answer IN ('class', 'none', 'unsure', 'skip', 'undo')),
    class INTEGER REFERENCES class,
    seconds REAL,
    undoes INTEGER UNIQUE REFERENCES label,
    ticket TEXT NOT NULL UNIQUE,   -- a request that is sent twice is one label
    CHECK ((answer = 'class') = (class IS NOT NULL)),
    CHECK ((answer = 'undo') = (undoes IS NOT NULL))
) STRICT;
CREATE INDEX label_by_image ON label (image, who);
CREATE INDEX label_by_who ON label (who, id);
CREATE TRIGGER label_stays BEFORE UPDATE ON label BEGIN SELECT RAISE(ABORT, 'labels are never changed'); END;
CREATE TRIGGER label_is_kept BEFORE DELETE ON label BEGIN SELECT RAISE(ABORT, 'labels are never removed'); END;

-- The last answer of each person on each image that was not taken back.
CREATE VIEW current_answer AS
SELECT * FROM label AS one
WHERE answer <> 'undo'
  AND NOT EXISTS (SELECT 1 FROM label AS undo WHERE undo.undoes = one.id)
  AND NOT EXISTS (
    SELECT 1 FROM label AS later
    WHERE later.image = one.image AND later.who = one.who AND later.id > one.id AND later.answer <> 'undo'
      AND NOT EXISTS (SELECT 1 FROM label AS undo WHERE undo.undoes = later.id)
  );

CREATE TABLE lease (
    image INTEGER NOT NULL REFERENCES image,
    who TEXT NOT NULL,
    until REAL NOT NULL,
    PRIMARY KEY (image, who)
) STRICT;

CREATE TABLE training (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    round INTEGER NOT NULL,        -- the last round whose labels it learned from; 0 before the first
    made_at TEXT NOT NULL,
    labels_spent INTEGER NOT NULL,
    weights TEXT NOT NULL,         -- a file in the workspace's folder models
    how TEXT NOT NULL,
    accuracy REAL NOT NULL,        -- on the validation set
    recall TEXT NOT NULL,          -- JSON: of every class, null where it has no image
    counts TEXT NOT NULL           -- JSON: validation images of every class
) STRICT;
