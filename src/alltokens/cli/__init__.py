"""The last stage: one small file a command over everything before it; hands on nothing but what it prints."""
