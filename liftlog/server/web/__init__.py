"""The web page on the HTTP port: `/ui/...`, rendered here, usable without JavaScript.

site         its routes; every page passes `_guarded`
asking       one request for a page: who asks, for what, and what may be shown
entering     sign in and out; the viewer of a request, by cookie, token or neither
sessions     who is signed in, bounded in number and time; tokens against forged requests
pages        the views: overview and health, stream, records and one record, access
actions      pause, resume, compact: confirmed, then carried out
watching     the streams as the pages show them: described at most once a second, rates of growth
browsing     records for a page, found in a thread
content      a value as text, JSON, hexadecimal or msgpack
outline      JSON and msgpack as indented text, within bounds
formats      numbers, sizes, times and drawings for people
answers      templates rendered; HTML, JSON and files with their headers

Each page is made of one plain value (`Shown.data`), which is what its `.json` twin answers.
"""
