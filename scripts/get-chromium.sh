#!/bin/sh
# Install Debian's Chromium for the browser tests if there is none; without root, say how.
set -eu
for name in chromium chromium-browser google-chrome; do
    ! command -v "$name" >/dev/null || exit 0
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq
    apt-get install -y -qq chromium
else
    echo "The browser tests need Chromium. Install it with: sudo apt-get install chromium" >&2
    exit 1
fi
