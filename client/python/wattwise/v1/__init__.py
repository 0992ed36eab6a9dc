"""The wire contract: messages, enums, stubs and servicers of package `wattwise.v1`, generated from `protos/`."""

# ruff: noqa: F403 - the names are those of the generated modules
from wattwise.v1.batch_size_optimizer_pb2 import *
from wattwise.v1.batch_size_optimizer_pb2_grpc import *
from wattwise.v1.error_reason_pb2 import *
from wattwise.v1.event_pb2 import *
from wattwise.v1.job_control_pb2 import *
from wattwise.v1.job_control_pb2_grpc import *
from wattwise.v1.job_pb2 import *
from wattwise.v1.job_reader_pb2 import *
from wattwise.v1.job_reader_pb2_grpc import *
from wattwise.v1.server_info_pb2 import *
from wattwise.v1.server_info_pb2_grpc import *
from wattwise.v1.statistics_pb2 import *
from wattwise.v1.trial_pb2 import *
