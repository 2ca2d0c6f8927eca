import sys

from liftlog.client import connect_sync

address, count = sys.argv[1], int(sys.argv[2])
with connect_sync(address) as client:
    with client.worker("jobs", "resize", batch=100) as worker:
        for message in worker.messages():
            print("python", message.value.decode(), flush=True)
            worker.ack(message)
            count -= 1
            if count == 0:
                break
