"""The core alone: no Java, no files but golden ones, seconds."""
