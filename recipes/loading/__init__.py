"""The study of data loading: images in four formats, read and decoded in several ways."""
