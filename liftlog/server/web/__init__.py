"""The web page on the HTTP port: `/ui/...`. The daemon renders it; it works without JavaScript.

site         the routes, and the checks that run before every page
asking       one request for a page: its viewer, its stream, and the viewer's rights
entering     signs users in and out; identifies the viewer of a request by cookie or token
sessions     the sessions of signed-in users; tokens against forged requests
pages        the views: overview and health, stream, records with their form, one record,
             versions of a key, consumers and their moves, groups, topology, charts, access,
             cluster; forms that create and edit a stream, and publish a message
actions      pause, resume, compact: confirmed, then carried out
watching     descriptions of the streams for the pages, created at most once a second
readers      lists of the consumers and groups for the pages, created at most once a second
history      the last minutes and hours of each stream and of the daemon, in bounded memory
browsing     searches in a thread for the records of a page
waiting      the time that the oldest unread record of each consumer has been in its stream
pace         limits the speed of a search
troubles     the text of a page that cannot show the requested object
fields       chosen JSON fields as columns; two values side by side
conditions   search conditions on values: a text, a JSON field, a regular expression
content      a value as text, JSON, hexadecimal or msgpack
outline      JSON and msgpack as indented text of limited size, with colours and marks for folding
picture      the drawing of the topology: filters, streams, readers, and lines between them
formats      numbers, sizes, times and drawings for people
answers      renders templates; answers with HTML, JSON and files, and their headers

Each page is rendered from one plain value (`Shown.data`). The page's address plus `.json` returns
this value as JSON.
"""
