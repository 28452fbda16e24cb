"""Pictures of cursors, hash rings and times."""
