"""The stage that varies images in training: geometry that composes into a view, then changes of colour that do not."""
