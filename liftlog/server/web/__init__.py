"""The web page on the HTTP port: `/ui/...`, rendered here, usable without JavaScript.

site         its routes; everything passes `_guarded`
seams        what it needs of the rest of the daemon
asking       one request for a page: who asks, for what, and what may be shown
entering     sign in and out; who comes with which cookie, token or neither
sessions     who is signed in, bounded in number and time; tokens against forged requests
pages        one view for each page: overview, stream, records, record, access, health
actions      pause, resume, compact: asked for, confirmed, done
descriptions the streams as they were within the last second, a few at a time
rates        how fast each stream grew in the last minutes
browsing     records for a page, found in a thread
content      a value as text, JSON, hexadecimal or msgpack
picture      the segments of a stream as a drawing
rendering    templates, a slice at a time; formats: numbers, sizes, times
answers      HTML, JSON and files with their headers

Each page is made of one plain value (`Shown.data`), which is what its `.json` twin answers.
"""
