#!/usr/bin/env bash
# What a container of the image liftlog-spark is to be: its first argument.
#
#   master            the master of a standalone cluster
#   worker [URL]      one of its workers; URL is spark://spark-master:7077 if left out
#   driver ARG...     } how Kubernetes starts the pods of a job; the rest comes in variables
#   executor          }
#   anything else     is run as it stands: spark-submit ..., liftlog export ...
#
# Ports, cores, memory and directories of master and workers come in Spark's own variables:
# SPARK_MASTER_PORT, SPARK_WORKER_CORES, SPARK_WORKER_MEMORY and so on. SPARK_HOME is the folder of
# the pip package pyspark, which has spark-class but no start-master.sh.
set -euo pipefail

home=${SPARK_HOME:?the folder of the pip package pyspark}
role=${1:-master}
[ $# -eq 0 ] || shift

case $role in
master)
  # Without its REST server, which accepts jobs from everyone who can reach it.
  export SPARK_MASTER_OPTS="-Dspark.master.rest.enabled=false ${SPARK_MASTER_OPTS:-}"
  exec "$home/bin/spark-class" org.apache.spark.deploy.master.Master \
    --host "${SPARK_MASTER_HOST:-$(hostname)}" "$@"
  ;;
worker)
  exec "$home/bin/spark-class" org.apache.spark.deploy.worker.Worker \
    --host "${SPARK_WORKER_HOST:-$(hostname)}" "${1:-spark://spark-master:7077}"
  ;;
driver)
  exec "$home/bin/spark-submit" \
    --conf "spark.driver.bindAddress=${SPARK_DRIVER_BIND_ADDRESS:?}" \
    --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" \
    --deploy-mode client "$@"
  ;;
executor)
  # SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, ...: one option of the JVM each, in order.
  options=()
  for ((i = 0; ; i++)); do
    name=SPARK_JAVA_OPT_$i
    [ -n "${!name+set}" ] || break
    options+=("${!name}")
  done
  java=java
  [ -z "${JAVA_HOME:-}" ] || java=$JAVA_HOME/bin/java
  exec "$java" "${options[@]}" \
    "-Xms${SPARK_EXECUTOR_MEMORY:?}" "-Xmx$SPARK_EXECUTOR_MEMORY" \
    -cp "${SPARK_CONF_DIR:-$home/conf}:${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$home/jars/*" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "${SPARK_DRIVER_URL:?}" \
    --executor-id "${SPARK_EXECUTOR_ID:?}" \
    --cores "${SPARK_EXECUTOR_CORES:?}" \
    --app-id "${SPARK_APPLICATION_ID:?}" \
    --hostname "${SPARK_EXECUTOR_POD_IP:?}" \
    --resourceProfileId "${SPARK_RESOURCE_PROFILE_ID:-0}" \
    --podName "${SPARK_EXECUTOR_POD_NAME:-}"
  ;;
*)
  exec "$role" "$@"
  ;;
esac
