#!/bin/sh
# Get Debian's Chromium for the tests of pages, where no Chromium is there yet; or say how.
set -eu
for name in chromium chromium-browser google-chrome; do
    ! command -v "$name" >/dev/null || exit 0
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq
    apt-get install -y -qq chromium
else
    echo "The tests of pages need Chromium. Install it with: sudo apt-get install chromium" >&2
    exit 1
fi
