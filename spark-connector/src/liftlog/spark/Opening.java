package liftlog.spark;

import java.io.Serializable;
import liftlog.files.FileStore;
import liftlog.files.FileTransport;
import liftlog.scan.ScanOptions;
import liftlog.scan.Transport;
import liftlog.wire.DaemonTransport;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.util.SerializableConfiguration;

/**
 * Opens the transport of a read, in the driver and in tasks. A path in another file system needs
 * the settings of Hadoop, which the tasks get from the driver.
 */
record Opening(SerializableConfiguration hadoop) implements Serializable {
    static Opening of(ScanOptions options) {
        boolean isRemote = options.path() != null && options.path().contains("://");
        if (!isRemote) {
            return new Opening(null);
        }
        return new Opening(new SerializableConfiguration(
                SparkSession.active().sparkContext().hadoopConfiguration()));
    }

    /**
     * Returns the number of tasks that Spark runs concurrently, as far as Spark reports it. For the
     * driver.
     */
    static int slots() {
        return Math.max(1, SparkContext.getOrCreate().defaultParallelism());
    }

    Transport forPlanning(ScanOptions options) {
        return open(options, DaemonTransport.PLANNING_MS);
    }

    Transport forReading(ScanOptions options) {
        return open(options, DaemonTransport.READING_MS);
    }

    private Transport open(ScanOptions options, long patienceMs) {
        String path = options.path();
        if (path == null) {
            return new DaemonTransport(options, patienceMs);
        }
        Configuration settings = hadoop == null ? null : hadoop.value();
        String place = path.startsWith("file:") ? path.substring("file:".length()) : path;
        return new FileTransport(FileStore.of(place, settings), place, options.stream(),
                options.wanted());
    }
}
