"""Sends a request by KServe's clients: `rest` or `grpc`, ADDRESS ARRAYS ANSWER BINARY NAMED; two are files.

A process of its own: importing KServe registers messages of gRPC whose names are also tritonclient's.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
import httpx
import kserve
import numpy as np
import pytest
from kserve.inference_client import RESTConfig
from kserve.protocol.infer_type import RequestedOutput


async def over_rest(url: str, request: Any) -> Any:
    async with kserve.InferenceRESTClient(RESTConfig(protocol="v2")) as client:
        assert await client.is_server_live(url)
        assert await client.is_server_ready(url)
        assert await client.is_model_ready(url, "dlrm")
        assert not await client.is_model_ready(url, "other")
        response = await client.infer(url, request, model_name="dlrm")
        with pytest.raises(httpx.HTTPStatusError, match="unknown model 'other'"):
            await client.infer(url, request, model_name="other")
        return response


async def over_grpc(address: str, request: Any) -> Any:
    async with kserve.InferenceGRPCClient(address) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("dlrm")
        assert not await client.is_model_ready("other")
        response = await client.infer(request)
        assert response.parameters["path"].string_param == "table@cpu"
        request.model_name = "other"
        with pytest.raises(grpc.RpcError) as caught:
            await client.infer(request)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        return response


def main(kind: str, address: str, arrays: str, answer: str, binary: str, named: str) -> None:
    as_binary = bool(int(binary))
    inputs = []
    for name, array in np.load(arrays).items():
        datatype = "FP32" if array.dtype.kind == "f" else "INT64"
        inputs.append(kserve.InferInput(name=name, shape=list(array.shape), datatype=datatype))
        inputs[-1].set_data_from_numpy(array, binary_data=as_binary)
    outputs = [RequestedOutput("probability", parameters={"binary_data": as_binary})] if int(named) else None
    request = kserve.InferRequest(
        model_name="dlrm", infer_inputs=inputs, request_id="q2", request_outputs=outputs
    )
    response = asyncio.run({"rest": over_rest, "grpc": over_grpc}[kind](address, request))
    assert response.id == "q2"
    np.save(answer, response.outputs[0].as_numpy())


main(*sys.argv[1:])
