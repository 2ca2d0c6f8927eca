"""The web page on the HTTP port: `/ui/...`, rendered here, usable without JavaScript.

site         its routes; every page passes `_guarded`
asking       one request for a page: who asks, for what, and what may be shown
entering     sign in and out; the viewer of a request, by cookie, token or neither
sessions     who is signed in, bounded in number and time; tokens against forged requests
pages        the views: overview and health, stream, records with their form, one record,
             versions of a key, consumers and moving one, groups, topology, charts, access,
             cluster; forms that create and edit a stream, and publish a message
actions      pause, resume, compact: confirmed, then carried out
watching     the streams as the pages show them: described at most once a second
history      the last minutes and hours of each stream and of the daemon, in bounded memory
browsing     records for a page, found in a thread
waiting      how long the oldest unread record of each consumer waits
pace         bounds how fast a search may go
troubles     the words of a page that cannot show what was asked for
fields       chosen JSON fields as columns; two values side by side
conditions   a text, a JSON field or an expression in values
content      a value as text, JSON, hexadecimal or msgpack
outline      JSON and msgpack as indented text, within bounds; with colours, and where it folds
picture      the drawing of the topology: filters, streams, readers, and lines between them
formats      numbers, sizes, times and drawings for people
answers      templates rendered; HTML, JSON and files with their headers

Each page is made of one plain value (`Shown.data`), which is what its `.json` twin answers.
"""
